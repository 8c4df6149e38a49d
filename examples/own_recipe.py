"""An algorithm with its own client half: clients send the signs of their changes, and keep what that leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import artesian
from artesian import (
    Algorithm,
    Buffers,
    ClientId,
    Cluster,
    Ensemble,
    Fit,
    Layout,
    Learner,
    Measured,
    Notebook,
    Params,
    Plan,
    Recipe,
    State,
    Step,
    Stream,
    Task,
    Upload,
)


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train; send one size and the sign of every change; remember the difference for the next time."""
    given = task.models["k0"]
    trained = learner.train(given, seed=task.settings["seed"], plan=Plan.of(task.settings))
    change = artesian.minus(layout, trained, given).copy()
    wanted = change[: layout.trainable] + notebook.get("left_out", np.float32(0))
    change[: layout.trainable] = np.abs(wanted).mean() * np.sign(wanted)
    kept = {**notebook, "left_out": wanted - change[: layout.trainable]}
    return Fit(Upload(client, task.number, learner.samples, {"k0": artesian.seal(change)}), kept, ((1.0, trained),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """Predict with the model that was given."""
    return ((1.0, task.models["k0"]),)


SIGNS = artesian.register(Recipe("signs", fit, use))


@dataclass(frozen=True)
class SignAverage(Algorithm):
    name: ClassVar[str] = "sign-average"
    recipes: ClassVar[tuple[str, ...]] = ("signs",)
    buffer_size: int = 5
    buffers: Buffers = "average"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(artesian.average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, "signs", {"delta": True}, returns=("k0",))

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        changes = [m.upload.params for m in measured]
        shares = (1.0, *[1 / len(changes)] * len(changes))
        return Step({"k0": artesian.combine(state.layout, (state.clusters["k0"].params, *changes), shares)})

    def pace(self) -> Stream:
        return Stream(batch=self.buffer_size)


if __name__ == "__main__":
    print("passes", ", ".join(artesian.check_algorithm(SignAverage())))
    simulated = artesian.simulate("digits-2", algorithm=SignAverage(), uploads=200)
    served = artesian.simulate("digits-2", algorithm=SignAverage(), uploads=200, transport=artesian.InProcess)
    print(simulated.table())
    print("the same bits over HTTP:", simulated.params["k0"].tobytes() == served.params["k0"].tobytes())

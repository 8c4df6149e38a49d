"""P16: whatever one member uploads, and however often, it moves a cluster by at most its budget.

Its first task is fresh: a late upload also brings along what others did since, which is for the method's own rule of
staleness to weigh.
"""

from dataclasses import replace

import numpy as np
import pytest
from promises.federation import draws

from artesian.algorithms import CDFL, Confluence, FedAsync, FedBuff
from artesian.core import Upload
from artesian.engine.defence import Defence, usual_length
from artesian.errors import TooFar
from artesian.params import distance, seal
from artesian.testing import ToyFederation, ToyModel

LAYOUT, DEFENCE = ToyModel().layout, Defence()
ALGORITHMS = {
    "fedasync": FedAsync(alpha=1.0, staleness="constant"),  # an upload is the model from then on
    "cdfl": CDFL(beta0=1.0, tau0=10**6),
    "confluence": Confluence(first_pretend=2, pretend=1, pretend_window=3, largest=1.0, catch_up=0.0),
    "fedbuff": FedBuff(buffer_size=1, staleness_weighting=False),
}
ROUNDING = 1.001


def any_upload(federation: ToyFederation, rng) -> Upload:
    """Its own change, turned and stretched at random; or any model at all."""
    upload, task = federation.upload_of("c0"), federation.tasks["c0"]
    ((name, params),) = upload.models.items()
    given = 0 * params if task.settings.get("delta") else task.models[name]
    lie = params.copy()
    if rng.random() < 0.5:
        lie[: LAYOUT.trainable] = (given + 10 ** rng.uniform(-2, 5) * rng.choice([-1, 1]) * (params - given))[
            : LAYOUT.trainable
        ]
    else:
        lie[: LAYOUT.trainable] = np.float32([rng.gauss(0, 10 ** rng.uniform(-2, 6)) for _ in range(LAYOUT.trainable)])
    return replace(upload, samples=rng.choice([0, 1, 10, 1 << 52]), models={name: seal(lie)})


def check_sequence(algorithm, uploads: int, rng) -> int:
    """Others upload, then one member as often as it likes; how many of its uploads were set aside."""
    federation = ToyFederation(algorithm, 8)
    federation.coordinator.adopt({**federation.coordinator.settings, "defence": DEFENCE.tree})
    federation.join_all()
    for _ in range(3):
        for client in federation.world.names[1:]:
            federation.take(federation.coordinator.receive(federation.upload_of(client)))
    federation.coordinator.leave("c0")
    federation.take(federation.coordinator.join("c0", 10))
    travelled = dict.fromkeys(federation.coordinator.state.clusters, 0.0)
    longest = usual_length(federation.coordinator.desk.ledger)
    for _ in range(uploads):
        before = federation.coordinator.state.clusters
        try:
            federation.take(federation.coordinator.receive(any_upload(federation, rng)))
        except TooFar:
            continue
        after = federation.coordinator.state.clusters
        longest = max(longest, usual_length(federation.coordinator.desk.ledger))
        for k in travelled:
            travelled[k] += distance(LAYOUT, before[k].params, after[k].params)
    budget = DEFENCE.budget * longest * ROUNDING
    assert max(travelled.values()) <= budget, f"a member moved a cluster by {max(travelled.values())}, not {budget}"
    return federation.coordinator.state.members["c0"].set_aside


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_sequence_of_uploads_moves_a_cluster_beyond_the_budget(promise, figure, name) -> None:
    sequences, rng = -(-promise("budgets") // len(ALGORITHMS)), draws("budgets", name)
    aside = sum(check_sequence(ALGORITHMS[name], 60, rng) for _ in range(sequences))
    assert aside  # the budget was spent
    figure(f"{name}: {aside} of {60 * sequences} uploads set aside")

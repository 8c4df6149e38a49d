"""A real coordinator driven by uploads as written down: hand numbers through joins, rounds, splits and departures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hand import layout, vector

from artesian.core import Algorithm, Reply, Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.params import Params, seal


class Written:
    """Clients by their numbers of samples, and what each answers."""

    def __init__(self, algorithm: Algorithm, start: Sequence[Params], clients: Mapping[str, int]) -> None:
        self.coordinator = Coordinator.start(algorithm, layout(len(start[0])), start)
        self.samples = dict(clients)
        self.tasks: dict[str, Task] = {}
        for client in clients:
            self.join(client)

    def take(self, replies: list[Reply]) -> None:
        self.tasks.update({reply.client: reply.task for reply in replies})

    def join(self, client: str, samples: int | None = None, changed: bool = False) -> None:
        self.samples[client] = samples if samples is not None else self.samples.get(client, 1)
        self.take(self.coordinator.join(client, self.samples[client], changed))

    def leave(self, client: str) -> None:
        self.tasks.pop(client, None)
        self.take(self.coordinator.leave(client))

    def expire(self, client: str) -> None:
        self.take(self.coordinator.expire(client, self.tasks.pop(client).number))

    def answer(self, client: str, *numbers: float, change: bool = False) -> None:
        """Upload these numbers, or the given model changed by them."""
        task = self.tasks.pop(client)
        ((name, given),) = task.models.items()
        params = seal(given + vector(*numbers)) if change else vector(*numbers)
        self.take(self.coordinator.receive(Upload(client, task.number, self.samples[client], models={name: params})))

    def answers(self, numbers: Mapping[str, Sequence[float]], change: bool = False) -> None:
        for client, row in numbers.items():
            self.answer(client, *row, change=change)

    @property
    def models(self) -> dict[str, list[float]]:
        return {k: c.params.tolist() for k, c in self.coordinator.state.clusters.items()}

    @property
    def homes(self) -> dict[str, str | None]:
        members = self.coordinator.state.members
        return {c: next(iter(m.mixture)) if m.mixture else None for c, m in sorted(members.items())}

    def given(self, client: str) -> tuple[str, list[float]]:
        ((name, params),) = self.tasks[client].models.items()
        return name, params.tolist()

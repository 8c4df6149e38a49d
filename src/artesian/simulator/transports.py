"""How clients reach the coordinator: directly, or over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from artesian.core import ClientId, Evidence, Reply, Upload
from artesian.engine.coordinator import Coordinator


class CoordinatorTransport(Protocol):
    """How clients reach the coordinator. Subclass it to inherit the defaults."""

    takes_evidence: ClassVar[bool] = False  # may an upload bring what was measured where it was made?
    shares_tasks: ClassVar[bool] = False  # is the task of a reply the very one that the coordinator keeps?
    coordinator: Coordinator

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        """A client joins, or says that its data changed."""
        ...

    def upload(self, upload: Upload, evidence: Evidence | None = None) -> list[Reply]:
        """A client uploads; evidence comes only where it is taken."""
        ...

    def leave(self, client: ClientId) -> list[Reply]:
        """A client leaves."""
        ...

    def expire(self, client: ClientId, number: int) -> list[Reply]:
        """A task has been open for too long."""
        ...


@dataclass
class Direct(CoordinatorTransport):
    """No network: the coordinator's own verbs."""

    takes_evidence: ClassVar[bool] = True
    shares_tasks: ClassVar[bool] = True
    coordinator: Coordinator

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        return self.coordinator.join(client, samples, changed)

    def upload(self, upload: Upload, evidence: Evidence | None = None) -> list[Reply]:
        """With evidence, the upload is not measured again."""
        if evidence is None:
            return self.coordinator.receive(upload)
        receipt = self.coordinator.admit(upload)
        if receipt is None:
            return self.coordinator.recorded(upload.client)
        return self.coordinator.upload(self.coordinator.measure(upload, receipt, evidence))

    def leave(self, client: ClientId) -> list[Reply]:
        return self.coordinator.leave(client)

    def expire(self, client: ClientId, number: int) -> list[Reply]:
        return self.coordinator.expire(client, number)

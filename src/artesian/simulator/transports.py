"""How clients reach the coordinator: directly, or over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from artesian.core import ClientId, Evidence, Reply, Upload
from artesian.engine.coordinator import Coordinator


class Link(Protocol):
    """How clients reach the coordinator: directly, or over HTTP."""

    @property
    def coordinator(self) -> Coordinator: ...
    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]: ...
    def upload(self, upload: Upload) -> list[Reply]: ...
    def leave(self, client: ClientId) -> list[Reply]: ...
    def expire(self, client: ClientId, number: int) -> list[Reply]: ...


@dataclass(frozen=True)
class Direct:
    """No network: the coordinator's own verbs."""

    coordinator: Coordinator

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        return self.coordinator.join(client, samples, changed)

    def upload(self, upload: Upload, evidence: Evidence | None = None) -> list[Reply]:
        """With evidence, what measuring would find is known, and it is not measured again."""
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

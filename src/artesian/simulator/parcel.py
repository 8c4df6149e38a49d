"""What travels between processes, and how long it takes to pack and to unpack it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Mark:
    """Notes when it is packed and when it is unpacked."""

    def __init__(self, packed: float = 0.0) -> None:
        self.packed, self.unpacked = packed, time.perf_counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return Mark, (time.perf_counter(),)


@dataclass(frozen=True)
class Parcel(Generic[T]):
    """A content between two marks: fields are packed, and unpacked, in their order."""

    first: Mark = field(default_factory=Mark, init=False)
    content: T
    last: Mark = field(default_factory=Mark, init=False)

    @property
    def packing(self) -> float:
        """The seconds it took its sender; 0 before it was sent."""
        return self.last.packed - self.first.packed

    @property
    def unpacking(self) -> float:
        """The seconds it took its receiver."""
        return self.last.unpacked - self.first.unpacked

"""Being interrupted politely."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self


class Interruption:
    """Ctrl-C, or a polite kill, between two moments and never within one; the second time at once."""

    asked = False

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

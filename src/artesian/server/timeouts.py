"""Timeouts of connections: for the headers of a request, and for a client that does not read its response.

uvicorn itself would wait for ever for either. While a request is handled, the application's own deadlines hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from artesian.errors import MissingExtra
from artesian.server.settings import Settings

try:
    from h11 import SEND_BODY
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError:
    raise MissingExtra("uvicorn", "server") from None

FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def connections(settings: Settings) -> type[H11Protocol]:
    """The class of connections with the timeouts of these settings."""

    class Connection(H11Protocol):
        """One client's connection: at any time either a request is being handled or a deadline runs."""

        deadline: asyncio.TimerHandle | None = None  # for the headers of the next request
        reading: asyncio.TimerHandle | None = None  # for a client to take what was sent

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.connections:
                transport.write(FULL)
                transport.close()
            else:
                self.deadline = self._after(settings.grace, self._end)

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before and self.deadline is not None:
                self.deadline.cancel()  # the headers are here: from now on the application's deadlines hold
                self.deadline = None

        def on_response_complete(self) -> None:
            if self.deadline is None and not self.transport.is_closing():
                rest = self.conn.their_state is SEND_BODY  # of a body that was answered before its end
                self.deadline = self._after(settings.grace + (0 if rest else self.timeout_keep_alive), self._end)
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            left = self.transport.get_write_buffer_size()
            self.reading = self._after(left / settings.slowest + settings.grace, self.transport.abort)

        def resume_writing(self) -> None:
            if self.reading is not None:
                self.reading.cancel()
            super().resume_writing()

        def _after(self, seconds: float, end: Callable[[], None]) -> asyncio.TimerHandle:
            return self.loop.call_later(seconds, end)

        def _end(self) -> None:
            self.deadline = None
            self.transport.abort()

        def _cancel(self) -> None:
            for timer in (self.deadline, self.reading):
                if timer is not None:
                    timer.cancel()

    return Connection

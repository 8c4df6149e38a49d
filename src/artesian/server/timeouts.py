"""Connections: their timeouts, their number, and one line of the log for a request that is not HTTP.

uvicorn itself would wait for ever for the headers of a request, and for a client that does not read its response. While
a request is handled, the application's own deadlines hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from artesian.errors import MissingExtra
from artesian.server.crowding import Crowd, address_of
from artesian.server.log import CONNECTIONS, CROWDED, PROBES
from artesian.server.settings import Settings

try:
    from h11 import IDLE, SEND_BODY, SEND_RESPONSE
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError:
    raise MissingExtra("uvicorn", "server") from None


def connections(settings: Settings, crowd: Crowd | None = None) -> type[H11Protocol]:
    """The class of connections with the timeouts and limits of these settings."""
    here = Crowd(settings) if crowd is None else crowd

    class Connection(H11Protocol):
        """One client's connection: at any time either a request is being handled or a deadline runs."""

        deadline: asyncio.TimerHandle | None = None  # for the headers of the next request
        reading: asyncio.TimerHandle | None = None  # for a client to take what was sent
        address = ""
        counted = False  # among those whose request is under way

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.address = address_of(self.client)
            self.deadline = self._after(settings.grace, self._end)
            here.arrive(self, self.address)

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self._answered()
            here.leave(self, self.address)
            super().connection_lost(exc)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:
                self._begin()

        def on_response_complete(self) -> None:
            self._answered()
            if self.deadline is None and not self.transport.is_closing():
                rest = self.conn.their_state is SEND_BODY  # of a body that was answered before its end
                self.deadline = self._after(settings.grace + (0 if rest else self.timeout_keep_alive), self._end)
                here.rest(self, self.address)
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            """End a connection whose bytes are not HTTP; whoever reads them in the application sees it hang up."""
            here.bad += 1
            CONNECTIONS.warning("bad request", extra={"fields": {"address": self.address, "problem": msg}})
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (IDLE, SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            left = self.transport.get_write_buffer_size()
            self.reading = self._after(left / settings.slowest + settings.grace, self.transport.abort)

        def resume_writing(self) -> None:
            if self.reading is not None:
                self.reading.cancel()
            super().resume_writing()

        def evict(self) -> None:
            """Make room: this connection has waited for a request longer than others."""
            self.transport.abort()

        def _begin(self) -> None:
            """The headers of a request are here: from now on the application's deadlines hold."""
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None
            refusal = here.begin(self, self.address, self.scope["path"] in PROBES)
            self.counted = refusal is None
            if refusal is not None:
                self.scope[CROWDED] = refusal  # type: ignore[literal-required]

        def _answered(self) -> None:
            if self.counted:
                self.counted = False
                here.end(self.address)

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

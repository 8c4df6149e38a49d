"""A session for asyncio: its calls run one after the other in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

from artesian.client.in_use import Refreshed
from artesian.client.session import Session
from artesian.client.watch import RefreshRecord, Watch
from artesian.core import ClientId, Ensemble, Task, Upload
from artesian.drift.detector import Detector
from artesian.drift.policy import Policy
from artesian.drift.watch import Decision
from artesian.engine.drawing import Moved
from artesian.params import Params

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSession:
    """One client of one federation, awaited.

    Cancelling a call ends only the wait for it: the thread finishes what was begun, and the next call comes after it.
    So the home is never left half-written, and the session stays usable.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, f"artesian-{session.client}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client(self) -> ClientId:
        """The name of this client."""
        return self._session.client

    async def task(self, samples: int = 0, wait: float = 30.0, changed: bool = False) -> Task | None:
        """See `Session.task`."""
        return await self._run(self._session.task, samples, wait, changed)

    async def upload(self, upload: Upload) -> Task | None:
        """See `Session.upload`."""
        return await self._run(self._session.upload, upload)

    async def refresh(self, learner: Any, *data: Any, **options: Any) -> Refreshed:
        """See `Client.refresh`; the training runs in the thread, too."""
        return await self._run(self._session.refresh, learner, *data, **options)

    async def held(self) -> Ensemble:
        """See `Session.held`."""
        return await self._run(self._session.held)

    async def previous(self, *network: Any) -> Ensemble:
        """See `Client.previous`."""
        return await self._run(self._session.previous, *network)

    async def draw(self, samples: int = 0, fresh: bool = False) -> Params:
        """See `Session.draw`."""
        return await self._run(self._session.draw, samples, fresh)

    async def draw_now(self, *data: Any, **options: Any) -> Refreshed:
        """See `Client.draw_now`."""
        return await self._run(self._session.draw_now, *data, **options)

    async def moved(self) -> Moved:
        """See `Session.moved`."""
        return await self._run(self._session.moved)

    async def watch(self, policy: Policy | str = "drift", detectors: Sequence[Detector | str] = ("ks",)) -> AsyncWatch:
        """See `Client.watch`; what it remembers is read in the thread."""
        return AsyncWatch(await self._run(Watch, policy, detectors, client=self._session), self._run)

    async def leave(self) -> None:
        """See `Session.leave`."""
        await self._run(self._session.leave)

    @property
    def acknowledgement(self) -> str | None:
        """See `Session.acknowledgement`."""
        return self._session.acknowledgement

    async def keys(self) -> dict[str, Any]:
        """See `Session.keys`."""
        return await self._run(self._session.keys)

    async def close(self) -> None:
        """Close the connections, after the calls under way; closing twice is harmless."""
        try:
            await self._run(self._session.close)
        except RuntimeError:  # the thread has ended: it was closed before
            return
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **options))


class AsyncWatch:
    """A watch over a client, awaited: it looks at data in the thread of that client's session."""

    def __init__(self, watch: Watch, run: Callable[..., Awaitable[Any]]) -> None:
        self._watch, self._run = watch, run

    @property
    def decision(self) -> Decision:
        """See `Watch.decision`."""
        return self._watch.decision

    @property
    def history(self) -> tuple[RefreshRecord, ...]:
        """See `Watch.history`."""
        return self._watch.history

    @property
    def last(self) -> RefreshRecord | None:
        """See `Watch.last`."""
        return self._watch.last

    @property
    def changed(self) -> bool:
        """See `Watch.changed`."""
        return self._watch.changed

    async def wants_refresh(self, data: Any, loader: Any = None, **options: Any) -> bool:
        """See `Watch.wants_refresh`."""
        return bool(await self._run(self._watch.wants_refresh, data, loader, **options))

    async def request(self) -> None:
        """See `Watch.request`."""
        await self._run(self._watch.request)

    async def refreshed(self, result: Refreshed | None = None, bytes_: int | None = None) -> RefreshRecord | None:
        """See `Watch.refreshed`."""
        record: RefreshRecord | None = await self._run(self._watch.refreshed, result, bytes_)
        return record

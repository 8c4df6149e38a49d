"""A client that knows when to refresh: `Watching` with a clock, the models in use, and a file in the client's home."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from artesian.client.in_use import Refreshed
from artesian.client.transport import Transport
from artesian.core import Ensemble, Learner
from artesian.drift.detector import Batch, Detector
from artesian.drift.observing import batch_of
from artesian.drift.policy import AllOf, AnyOf, Policy, Unless
from artesian.drift.rules import Confirmed, OnDrift
from artesian.drift.watch import Decision, Watching
from artesian.errors import BadFormat, SettingError, StartedAfresh, StorageError
from artesian.storage.codec import decode, encode, from_tree, to_tree
from artesian.storage.files import storage, write_file

FILE = "watch"
REMEMBERED = 100  # refreshes
OF_A_MODEL = {"losses", "errors", "logits"}


class Watched(Protocol):
    """What a watch asks of a client."""

    home: Path
    transport: Transport  # which counts bytes

    def held(self) -> Ensemble: ...


@dataclass(frozen=True)
class RefreshRecord:
    """One refresh: why it took place, and whether it helped, on data held back from training."""

    at: float  # seconds since 1970
    why: str
    won: str  # what the client uses since
    held_back: int = 0  # samples that judged
    before: float | None = None  # the score of what it used before; None where that was not judged
    after: float | None = None
    bytes_: int = 0  # up and down

    @property
    def gain(self) -> float | None:
        """How much better it is now; None where that is not known."""
        return None if self.before is None or self.after is None else self.after - self.before

    def __str__(self) -> str:
        if self.gain is None:
            return "not known whether it helped: nothing to compare on data held back"
        word = "helped" if self.gain > 0 else "did not help" if self.gain == 0 else "made it worse"
        return f"{word}: {self.before:.4f} to {self.after:.4f} on {self.held_back} samples held back"


class Watch:
    """Looks at a client's data, batch by batch, and says when it is time to refresh.

    What it knows is in the file `watch` of the client's home: after a crash or a restart it goes on from there.
    """

    def __init__(
        self,
        policy: Policy | str = "drift",
        detectors: Sequence[Detector | str] = ("ks",),
        *,
        home: str | Path | None = None,
        client: Watched | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A watch over a client, or over data alone.

        Args:
            policy: When to refresh, such as "(drift or age 7d) and budget 10/day".
            detectors: What looks for drift: names, or what `detector` makes.
            home: The folder to remember in. That of the client, where one is given; without both, only in memory.
            client: The client whose models are in use: losses, errors and outputs are theirs.
            clock: The present time in seconds.
        """
        self._watching = Watching(policy, detectors)
        self._client, self._clock = client, clock
        folder = client.home if client is not None and home is None else home
        self._path = None if folder is None else Path(folder) / FILE
        self._why = ""  # of the refresh that was last wanted
        self._moved = 0 if client is None else client.transport.bytes_moved
        self.decision = Decision(False, "nothing was seen yet")
        self.history: tuple[RefreshRecord, ...] = ()
        _check_detectors(self._watching)
        self._read()

    @property
    def last(self) -> RefreshRecord | None:
        """The last refresh that it was told of."""
        return self.history[-1] if self.history else None

    @property
    def changed(self) -> bool:
        """Was drift found that no refresh has answered yet? `refresh(..., changed=watch.changed)` tells the server."""
        return self._watching.situation.drift is not None

    def wants_refresh(self, data: Any, loader: Any = None, **options: Any) -> bool:
        """Take in the newest data, and say whether to refresh now; `decision` says why, or why not.

        Args:
            data: A learner, a `Batch`, a pair of inputs and labels, or a torch network.
            loader: With a network: the data, as batches of (input, target).
            options: With a network: options of `TorchModel`, and `loss`.
        """
        models = self._models()
        if self._client is not None and not models:
            self.decision = Decision(True, "there is no model here yet")
        else:
            batch = self._batch(data if loader is None else _learner(data, loader, options), models)
            self.decision = self._watching.decide(batch, self._clock())
        if self.decision.refresh:
            self._why = self.decision.reason
        self._write(sync=False)
        return self.decision.refresh

    def request(self) -> None:
        """Call for a refresh, for policies with `request`."""
        self._watching.request()
        self._write()

    def refreshed(self, result: Refreshed | None = None, bytes_: int | None = None) -> RefreshRecord | None:
        """Tell that a refresh took place, and what it gave; the detectors begin again.

        None is returned, and nothing changes, where there was no task: a round was open.

        Args:
            result: What `refresh` returned.
            bytes_: Bytes up and down. Those that the client counted since the last time, where nothing is said.
        """
        if result is not None and result.won == "previous" and not result.scores:
            return None
        now, moved = self._clock(), 0 if self._client is None else self._client.transport.bytes_moved
        sent = moved - self._moved if bytes_ is None else bytes_
        self._moved = moved
        record = _record(now, self._why or "without being asked", result, sent)
        self._watching.refreshed(now, sent)
        self._why, self.history = "", (*self.history, record)[-REMEMBERED:]
        self._write()
        return record

    def _models(self) -> Ensemble:
        if self._client is not None:
            with suppress(SettingError):  # nothing was drawn yet
                return self._client.held()
        return ()

    def _batch(self, data: Any, models: Ensemble) -> Batch:
        parts = {each.part for each in self._watching.detectors}
        if isinstance(data, Batch):
            return data
        if isinstance(data, tuple) and len(data) == 2:
            return Batch(features=data[0], labels=data[1])
        if not isinstance(data, Learner):
            problem = f"A watch cannot look at a {type(data).__name__}"
            raise SettingError(problem, "Give it a learner, a Batch, inputs and labels, or a network and its loader")
        if self._client is None and parts & OF_A_MODEL:
            raise SettingError(
                f"This watch needs {' and '.join(sorted(parts & OF_A_MODEL))}, and knows no model",
                "Make it with client.watch(...), or give it a Batch",
            )
        return batch_of(data, models, parts)

    # at home

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        with storage(self._path):
            data = self._path.read_bytes()
        try:
            told = decode("watch", data, dict)
            fresh = self._watching.restore(told["watching"])
            self.history = tuple(from_tree(RefreshRecord, each) for each in told["history"])
            self._why = str(told["why"])
        except (BadFormat, LookupError, TypeError, ValueError, AttributeError):
            raise StorageError(
                f"Cannot read what a watch remembered: {self._path}", "Delete the file; the watch begins anew"
            ) from None
        if fresh:
            problem = f"The watch in {self._path.parent} was kept with other detectors or settings"
            warnings.warn(StartedAfresh(f"{problem}; these start afresh: {', '.join(fresh)}"), stacklevel=3)

    def _write(self, sync: bool = True) -> None:
        if self._path is None:
            return
        kept = {"watching": self._watching.state(), "history": to_tree(self.history), "why": self._why}
        with storage(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self._path, encode("watch", kept), private=True, sync=sync)


def _record(now: float, why: str, result: Refreshed | None, sent: int) -> RefreshRecord:
    if result is None:
        return RefreshRecord(now, why, "unknown", bytes_=sent)
    choice = result.choice
    before, after = choice.scores.get("previous"), choice.scores.get(choice.won)
    return RefreshRecord(now, why, choice.won, choice.held_back, before, after, sent)


def _learner(network: Any, loader: Any, options: dict[str, Any]) -> Learner:
    """A network of the user's with its data; its own weights are not used."""
    from artesian.learners.user_network import OwnNetwork

    loss = options.pop("loss", None)
    return OwnNetwork(network, loader, loss, None, options).learner


def _check_detectors(watching: Watching) -> None:
    if not watching.detectors and _waits_for_drift(watching.policy):
        raise SettingError(
            f"The policy {str(watching.policy)!r} waits for drift, and nothing looks for it", 'Add detectors=["ks"]'
        )


def _waits_for_drift(policy: Policy) -> bool:
    if isinstance(policy, (AnyOf, AllOf)):
        return any(map(_waits_for_drift, policy.rules))
    return _waits_for_drift(policy.rule) if isinstance(policy, Unless) else isinstance(policy, (OnDrift, Confirmed))

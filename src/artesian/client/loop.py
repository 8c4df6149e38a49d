"""`artesian client`: one client that refreshes several times, or every so many seconds, and reports each time."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from artesian.client.in_use import Refreshed, split_for
from artesian.client.session import Session, only_model_of
from artesian.client.transport import Transport
from artesian.client.watch import Watch
from artesian.core import ClientId, Ensemble, Learner, Task
from artesian.errors import (
    ArtesianError,
    Busy,
    Conflict,
    MachineError,
    RunLocked,
    ServerFailed,
    SettingError,
    TaskClosed,
    TooSlow,
    UnknownTask,
)
from artesian.plugins import imported
from artesian.recipes.accepting import SHARE, Accept
from artesian.storage.codec import encode_arrays
from artesian.storage.files import lock_file, storage, write_file

PASSING = (MachineError, Busy, TooSlow, TaskClosed, UnknownTask, Conflict)  # errors that may be gone next time
Told = dict[str, Any]
LONG = 200  # characters of a setting beyond which it is not shown


def refreshes(
    session: Session,
    make: Callable[[], Learner],
    times: int | None = 1,
    every: float = 0.0,
    complain: Callable[[ArtesianError], None] | None = None,
    *,
    out: Path | None = None,
    accept: Accept = "better",
    hold_back: float = SHARE,
    watch: Watch | None = None,
    **options: Any,
) -> Iterator[Told]:
    """Refresh so many times (None: for ever), `every` so many seconds; `complain` gets errors that may pass.

    With a watch, look at the data so many times instead, and refresh when it says so. What the client uses
    afterwards is written to `out`. `options` are those of `Session.refresh`.
    """
    for turn in count(1):
        end = time.monotonic() + every
        try:
            learner = make()
            if watch is None or watch.wants_refresh(learner):
                yield _refresh(session, learner, out, accept, hold_back, watch, **options)
            else:
                yield _waited(session, learner, watch)
        except PASSING as error:
            if complain is None:
                raise
            complain(error)
            end = max(end, time.monotonic() + (error.seconds if isinstance(error, (Busy, ServerFailed)) else 0))
        if turn == times:
            return
        time.sleep(max(0.0, end - time.monotonic()))


def _waited(session: Session, learner: Learner, watch: Watch) -> Told:
    """A look at the data without a refresh, and why there was none."""
    told: Told = {"client": session.client, "samples": learner.samples, "refreshed": False}
    return told | {"reason": watch.decision.reason}


def _refresh(
    session: Session,
    learner: Learner,
    out: Path | None,
    accept: Accept,
    hold_back: float,
    watch: Watch | None = None,
    **options: Any,
) -> Told:
    """One refresh; `before` and `after` are scores of what was and is in use, on data held back or, without, on all."""
    split = split_for(learner, accept, hold_back, session.client)
    changed = watch is not None and watch.changed
    task = _task(session, split.train.samples, changed)
    judge = split.judge() if split.rows.size else learner
    before = _score(session.held(), judge)
    number = (session.pending() or task).number  # of an upload that an earlier process left behind, or the next one
    held = session.refresh(learner, wait=0, changed=changed, accept=accept, hold_back=hold_back, **options)
    if out is not None:
        write_model(session, held, out)
    now = session.kept() or task
    told = {"client": session.client, "answered": number, "samples": split.train.samples, "before": before}
    told |= {"after": _score(held, split.judge() if split.rows.size else learner), **_choice(held, accept)}
    told |= {"task": now.number, "mixture": now.mixture}
    return told if watch is None else told | _watched(watch, held)


def _watched(watch: Watch, held: Refreshed) -> Told:
    """Why there was a refresh, and whether it helped."""
    record = watch.refreshed(held)
    told: Told = {"refreshed": True, "reason": watch.decision.reason}
    return told | ({"outcome": str(record), "gain": record.gain} if record is not None else {})


def _choice(held: Refreshed, accept: Accept) -> Told:
    """What won, of how many samples; where clients judge and this one could not, why."""
    told: Told = {"held_back": held.held_back, "share": round(held.share, 4), "won": held.won}
    told |= {"scores": dict(held.scores)} if held.scores else {}
    return told | ({"why": held.why} if held.why and accept == "better" else {})


def _task(session: Session, samples: int, changed: bool = False) -> Task:
    """The open task, after waiting for a round as long as it takes."""
    while (task := session.task(samples, changed=changed)) is None:
        time.sleep(1.0)
    return task


def _score(held: Ensemble, learner: Learner) -> float | None:
    score = float(learner.score(held))
    return score if math.isfinite(score) else None


def draws(session: Session, samples: int, out: Path | None = None) -> Iterator[Told]:
    """Fetch the newest task, and describe it; write the model that it gives to `out`."""
    _task(session, samples)
    if out is not None:
        write_model(session, ((1.0, session.draw()),), out)
    yield describe(session)


def describe(session: Session) -> Told:
    """What a client has at home, without asking the server."""
    task, upload = session.kept(), session.pending()
    told: Told = {"client": session.client, "task": task and task.number, "upload": upload and upload.number}
    if task is not None:
        settings = {name: _short(value) for name, value in task.settings.items()}
        told |= {"version": task.base, "recipe": task.recipe, "mixture": task.mixture, "settings": settings}
        told["models"] = {name: params.size for name, params in task.models.items()}
    return told


def _short(value: Any) -> Any:
    """A setting for a person to read: of a long one, such as a gate, only how long it is."""
    length = len(json.dumps(value))
    return value if length <= LONG else f"({length:,} characters)"


def write_model(session: Session, held: Ensemble, path: Path) -> None:
    """The model the client predicts with, under its ordinary parameter names."""
    write_file(path, encode_arrays(session.layout.unpack(only_model_of(held))))


def learner_maker(source: str) -> Callable[[], Learner]:
    """A function that makes the learner of `module:name`: a learner, or a function called before each refresh."""
    found = imported(source, {}, "learner")
    if not isinstance(found, type) and isinstance(found, Learner):
        return lambda: found
    if not callable(found):
        problem = f"{source} is a {type(found).__name__}, neither a Learner nor a function that makes one"
        raise SettingError(problem, "A Learner has samples, losses, score and train, such as model.learner(x, y)")

    def make() -> Learner:
        try:
            made: Learner = found()
        except Exception as error:  # the user's own code may fail in any way
            raise SettingError(f"{source}() failed: {type(error).__name__}: {error}", "Fix it") from None
        if not isinstance(made, Learner):
            problem = f"{source} gave a {type(made).__name__}, not a Learner"
            raise SettingError(problem, "A Learner has samples, losses, score and train")
        return made

    return make


def check_token(token: str | None, home: Path) -> None:
    """Whoever has not joined yet needs a token."""
    if not (token or (home / "joined").exists()):
        raise SettingError("No enrolment token to join with", "Give --token, or set ARTESIAN_TOKEN")


@contextmanager
def session_of(
    transport: Transport,
    token: str | None,
    home: Path,
    offline: bool = False,
    client: ClientId | None = None,
    recipes: Sequence[str] = (),
) -> Iterator[Session]:
    """A session whose home no other process uses; `offline` only reads it."""
    lock = None if offline else _lock(home)
    try:
        with Session(transport, token or "", home, client, recipes) as session:
            yield session
    finally:
        if lock is not None:
            os.close(lock)


def _lock(home: Path) -> int:
    with storage(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lock_file(home / "lock")
    if lock is None:
        raise RunLocked(f"Another process uses this client's home: {home}", "Wait for it, or stop it")
    return lock

"""Everything that can go wrong, as one tree. An error says what happened, then what to do.

ArtesianError
├── UserError                 the user's mistake: exit code 2
│   ├── SettingError          a file, key or value of an experiment is wrong
│   ├── LayoutError           a model cannot be laid out as one vector
│   ├── MissingExtra          an optional package is not installed
│   ├── MissingData           a data set is not where it was looked for
│   ├── BadData               data that a model cannot learn from
│   ├── RunExists             the output folder already holds something
│   ├── NoRun                 a folder holds no run, or not what is wanted of it
│   ├── ResumeMismatch        the folder to resume belongs to another experiment
│   ├── Stalled               nobody is left who could upload
│   ├── RunLocked             another process works on this run
│   ├── NotAuthentic          an acknowledgement that was altered, or signed by another
│   ├── StoreMismatch         the store belongs to another federation, or another model
│   ├── StoreLocked           another server works on this store
│   └── ReplayDiffers         the code gives other answers than a store recorded
├── MachineError              the machine's failure: exit code 1
│   ├── StorageError          a file could not be written or read
│   ├── JournalDamaged        a journal was altered or lost a part in the middle
│   ├── Unreachable           no server answered in time
│   ├── ServerFailed          a server answered that it failed
│   ├── StoreDamaged          a store was altered, or is behind what it acknowledged
│   ├── WorkerLost            a worker process died
│   └── StudyFailed           a server's work beside the uploads failed, and an upload needs it
└── Refused                   the server says no; nothing has changed
    ├── BadFormat             bytes that are not a message of ours
    ├── UnknownFormat         a format number this version does not know
    ├── UnknownEncoding       a body that is compressed
    ├── UnknownRoute          an address, or a method at it, that is not served
    ├── BadClient             a client id or a sample count that cannot be
    ├── Unauthorized          no credential, or not the right one
    ├── TooLarge              a body larger than any upload can be
    ├── TooSlow               a body that did not arrive in time
    ├── Busy                  too much at once; come back later
    ├── UnknownClient         nobody joined under this id
    ├── UnknownTask           a task number that was never given to this client
    ├── NothingToDraw         a method whose clients keep what they predict with to themselves
    ├── TaskClosed            the task was answered, withdrawn or out of patience
    ├── NotRetained           a past state that can no longer be rebuilt
    ├── Conflict              another body under an identity already answered
    ├── WrongModels           not the models the task asks for
    ├── WrongShape            a vector of another length or dtype
    ├── TooFar                a change far beyond the model and all other changes
    ├── NotFinite             NaN or Inf in a model, a mixture or a measurement
    └── BadMixture            a mixture with an unknown cluster or a share outside [0, 1]

Warnings: FellBack, where an option that does not work here was left out; ChangedSince, where something has changed
since a run began; StartedAfresh, where a client's optimiser or detector could not go on from what was kept of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping


class ArtesianError(Exception):
    """The root: `problem` says what happened, `remedy` what to do about it."""

    exit_code = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        problem = _sentence(self.problem)
        if not self.remedy:
            return problem
        command = self.remedy.endswith(("'", '"'))  # to be copied as it is
        return f"{problem} {self.remedy if command else _sentence(self.remedy)}"


def _sentence(text: str) -> str:
    return text if text[-1:] in (".", "?", "!") else f"{text}."


class FellBack(UserWarning):
    """An option that does not work here was left out; the run goes on without it."""


class StartedAfresh(UserWarning):
    """What a client kept of an optimiser or a detector does not fit the present one, which begins without it."""


class ChangedSince(UserWarning):
    """Version, code or data have changed since a run began; it goes on with what is here."""


class UserError(ArtesianError):
    """The user's mistake."""

    exit_code = 2


class SettingError(UserError):
    """A file, key or value of an experiment is wrong."""


class LayoutError(UserError):
    """A model cannot be laid out as one float32 vector."""


class MissingExtra(UserError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs the package {package}", f"Install it: pip install 'artesian[{extra}]'")


class MissingData(UserError):
    """A data set is not where it was looked for."""


class BadData(UserError):
    """Data that a model cannot learn from."""


class RunExists(UserError):
    """The output folder already holds something."""


class NoRun(UserError):
    """A folder holds no run, or not what is wanted of it."""


class ResumeMismatch(UserError):
    """The folder to resume belongs to another experiment."""


class Stalled(UserError):
    """Nobody is left who could upload."""


class RunLocked(UserError):
    """Another process works on this run."""


class NotAuthentic(UserError):
    """An acknowledgement that was altered, or signed by another."""


class StoreMismatch(UserError):
    """The store belongs to another federation, or another model."""


class StoreLocked(UserError):
    """Another server works on this store."""


class ReplayDiffers(UserError):
    """The code that replays a store gives other answers than the code that wrote it."""


class MachineError(ArtesianError):
    """The machine's failure."""


class StorageError(MachineError):
    """A file could not be written or read."""


class JournalDamaged(MachineError):
    """A journal was altered or lost a part in the middle."""


class Unreachable(MachineError):
    """No server answered in time."""


class ServerFailed(MachineError):
    """A server answered that it failed; come back after `seconds`, where it said so."""

    seconds = 0


class StoreDamaged(MachineError):
    """A store was altered, or is behind what it acknowledged."""


class WorkerLost(MachineError):
    """A worker process died."""


class StudyFailed(MachineError):
    """A server's work beside the uploads failed, and an upload needs it."""


class Refused(ArtesianError):
    """The server says no; nothing has changed."""

    exit_code = 2


class BadFormat(Refused):
    """Bytes that are not a message of ours."""


class UnknownFormat(Refused):
    """A format number this version does not know."""


class UnknownEncoding(Refused):
    """A body that is compressed."""


class UnknownRoute(Refused):
    """An address, or a method at it, that is not served."""


class BadClient(Refused):
    """A client id or a sample count that cannot be."""


class Unauthorized(Refused):
    """No credential, or not the right one."""


class TooLarge(Refused):
    """A body larger than any upload can be."""


class TooSlow(Refused):
    """A body that did not arrive in time."""


class Busy(Refused):
    """Too much at once; come back after `seconds`."""

    seconds = 5


class UnknownClient(Refused):
    """Nobody joined under this id."""


class UnknownTask(Refused):
    """A task number that was never given to this client."""


class NothingToDraw(Refused):
    """A draw from a method whose clients keep what they predict with to themselves."""


class TaskClosed(Refused):
    """The task was answered, withdrawn or out of patience."""


class NotRetained(Refused):
    """A past state that can no longer be rebuilt: the uploads it needs were dropped, or never were."""


class Conflict(Refused):
    """Another body under an identity already answered."""


class WrongModels(Refused):
    """Not the models the task asks for."""


class WrongShape(Refused):
    """A vector of another length or dtype."""


class TooFar(Refused):
    """A change far beyond the model and all other changes."""


class NotFinite(Refused):
    """NaN or Inf in a model, a mixture or a measurement."""


class BadMixture(Refused):
    """A mixture with an unknown cluster or a share outside [0, 1]."""


SUBJECT = re.compile(r"((?:every )?\w+(?:, \w+)*(?: and \w+)?) (?:is|are) ")


def nearest(name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest known one, or the whole list."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Choose one of: {', '.join(names)}"


def check(value: object, rules: Mapping[str, bool]) -> None:
    """Refuse a value that breaks a rule, each a sentence about its fields such as "rate is above 0".

    >>> from artesian.core import Plan
    >>> Plan(rate=-1)
    Traceback (most recent call last):
    ValueError: rate must be above 0, not -1
    """
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(_broken(rule, vars(value)))


def _broken(rule: str, fields: Mapping[str, object]) -> str:
    """What a broken rule demands, and the values of the fields that it names."""
    demand = SUBJECT.sub(r"\1 must be ", rule, count=1) if SUBJECT.match(rule) else rule
    names = [word for word in dict.fromkeys(re.findall(r"\w+", rule)) if word in fields]
    if len(names) == 1 and "must be" in demand:
        return f"{demand}, not {fields[names[0]]!r}"
    return f"{demand}, but {' and '.join(f'{name} = {fields[name]!r}' for name in names)}" if names else demand

"""Reading what strace saw of a server: which files were synced between an upload's arrival and its acknowledgement."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CALLS = "fsync,fdatasync,write,pwrite64,writev,sendto,sendmsg,recvfrom,recvmsg,read"
OPTIONS = ("-f", "-y", "-s", "48", "--seccomp-bpf", "-e", f"trace={CALLS}", "-e", "signal=none")
LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
FILE = re.compile(r"\d+<([^>]*)>")
ORDER = ("blob synced", "log written", "log synced", "mark written", "mark synced")  # then the answer may leave


@dataclass(frozen=True)
class Call:
    """One system call: a reading or a sync counts when it returns, a writing when it is made."""

    name: str
    file: str
    text: str


def calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls of a trace, with those that another thread cut in two put together."""
    open_calls: dict[str, Call] = {}
    for line in lines:
        match = LINE.match(line)
        if match is None:
            continue
        thread, resumed, name, rest = match.groups()
        if resumed:
            begun = open_calls.pop(thread, Call(resumed, "", ""))
            if begun.name in ("fsync", "fdatasync", "recvfrom", "recvmsg", "read"):
                yield Call(begun.name, begun.file, begun.text + rest)
            continue
        found = FILE.match(rest)
        call = Call(name, found[1] if found else "", rest)
        if rest.endswith("<unfinished ...>"):
            open_calls[thread] = call
            if name in ("fsync", "fdatasync", "recvfrom", "recvmsg", "read"):
                continue
        yield call


def step(call: Call) -> str:
    """What a call means for an acknowledgement."""
    if call.name in ("fsync", "fdatasync"):
        if "= 0" not in call.text:
            return ""
        if "/blobs/" in call.file:
            return "blob synced"
        return {"artesian.db-wal": "log synced", "mark": "mark synced"}.get(call.file.rpartition("/")[2], "")
    if call.name in ("write", "pwrite64", "writev"):
        return {"artesian.db-wal": "log written", "mark": "mark written"}.get(call.file.rpartition("/")[2], "")
    return ""


def unsynced(lines: Iterable[str]) -> tuple[int, list[str]]:
    """How many uploads were acknowledged, and what was missing before that; of a client that sends one at a time."""
    acknowledged, wrong = 0, []
    steps: list[str] | None = None  # since an upload arrived
    for call in calls(lines):
        if call.name in ("recvfrom", "recvmsg", "read") and '"PUT ' in call.text and "/uploads/" in call.text:
            steps = []
        elif steps is not None and call.name in ("sendto", "sendmsg", "write") and '"HTTP/1.1 200' in call.text:
            acknowledged += 1
            wrong += [f"acknowledgement {acknowledged}: {why}" for why in missing(steps)]
            steps = None
        elif steps is not None and (what := step(call)):
            steps.append(what)
    return acknowledged, wrong


def missing(steps: list[str]) -> list[str]:
    """Which of the steps in ORDER did not happen, or not after the one before."""
    at, wrong = 0, []
    for wanted in ORDER:
        if wanted in steps[at:]:
            at += steps[at:].index(wanted) + 1
        else:
            wrong.append(f"not {wanted} in its turn")
    last = {wanted: len(steps) - 1 - steps[::-1].index(wanted) for wanted in ORDER if wanted in steps}
    if last.get("log written", -1) > last.get("log synced", -1):
        wrong.append("log written after its last sync")
    return wrong

"""Commands for stores: inspect, verify, backup, restore."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from artesian.cli.application import AsJson, StorePath, app
from artesian.cli.console import count_of, err, out, print_table, printable, say_age, show


@app.command(rich_help_panel="Federations")
def inspect(store: StorePath, as_json: AsJson = False) -> None:
    """Show what a store holds: clusters, members, version, last events. Only reads, also while a server uses it."""
    from artesian.server.serve import describe

    told = describe(store)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    shown = {**told, "first_at": _moment(told["first_at"]), "last_at": _moment(told["last_at"])}
    about = ("name", "algorithm", "format", "events", "first_at", "last_at", "snapshot_at", "version")
    for key in (*about, "rollback_from", "forget_from"):
        out.print(f"{key:13} {shown[key]}", highlight=False)
    say_age("clusters and members", told["snapshot_at"], told["events"])
    clusters = [[row["name"], str(row["updated"]), str(row["updates"]), show(row["loss"])] for row in told["clusters"]]
    print_table(["cluster", "updated at", "updates", "loss on its proxy"], clusters)
    members = []
    for row in told["members"][:20]:
        shares = " ".join(f"{k}={share:.2f}" for k, share in (row["mixture"] or {}).items())
        here = show(row["open"]) if row["present"] else "left"
        members.append([row["client"], str(row["samples"]), str(row["answered"]), here, row["standing"], shares])
    print_table(["member", "samples", "answered", "open task", "standing", "mixture"], members, words=["mixture"])
    if len(told["members"]) > 20:
        out.print(f"and {len(told['members']) - 20} more members (--json lists all)")
    acts = [
        [str(act["event"]), _moment(act["at"]), act["by"], _act(act), printable(act["why"])] for act in told["acts"]
    ]
    if acts:
        print_table(["event", "when", "by", "act", "why"], acts[-20:], words=["act", "why"])
    if len(acts) > 20:
        out.print(f"and {len(acts) - 20} earlier acts of operators (--json lists all)")
    out.print("last events: " + ", ".join(f"{e['kind']} {e['client']}".strip() for e in told["last"]), highlight=False)


@app.command(rich_help_panel="Federations")
def verify(
    store: StorePath,
    federation: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME|FILE|PRESET", help="What the store belongs to, if the algorithm is yours."),
    ] = None,
    acknowledgement: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A signed acknowledgement, whose event must be in the store.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a store: every array and digest, the chain, the mark, and a replay compared with what was recorded.

    Only reads, also while a server uses it. The exit code is 1 if anything is wrong.
    """
    from artesian.config.federations import load_served
    from artesian.server.verifying import acknowledged
    from artesian.server.verifying import verify as check

    taken = None if acknowledgement is None else acknowledged(store, _text(acknowledgement))

    served = load_served(federation)[0] if federation else None
    with count_of("checking arrays") as progress:
        told = check(store, *((served.algorithm, progress, served.identity) if served else (None, progress)))
    told |= {} if taken is None else {"acknowledgement": asdict(taken)}
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        if taken is not None:
            said = f"upload {taken.number} of {taken.client} is event {taken.event}, taken at {taken.time}"
            out.print(f"acknowledged: {said}", highlight=False, markup=False)
        out.print(f"{told['events']} events, {told['replayed']} replayed, {told['arrays']} arrays", highlight=False)
        for line in [*told["notes"], *map(_complained, told["problems"])]:
            out.print(line, highlight=False, markup=False)
        out.print("sound" if told["sound"] else "NOT SOUND", highlight=False)
    sys.exit(0 if told["sound"] else 1)


@app.command(rich_help_panel="Federations")
def backup(
    store: StorePath,
    to: Annotated[Path, typer.Argument(metavar="TO", help="New folder for the backup.")],
    as_json: AsJson = False,
) -> None:
    """Copy a store as it is at one moment, also while a server uses it. A backup is a store itself."""
    _copy(store, to, "backing up arrays", as_json)


@app.command(rich_help_panel="Federations")
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder of the backup.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="New folder for the store.")],
    as_json: AsJson = False,
) -> None:
    """Make a store from a backup, checked array by array. Nothing is overwritten."""
    _copy(source, store, "restoring arrays", as_json)


def _copy(source: Path, target: Path, label: str, as_json: bool) -> None:
    from artesian.storage.copying import copy_store

    with count_of(label) as progress:
        copied = copy_store(source, target, progress)
    last = copied.history.times()[1]
    told = {
        "from": str(source),
        "to": str(target),
        "events": copied.history.count,
        "last_at": last,
        "chain": copied.history.chain,
        "arrays": copied.arrays,
        "attempts": copied.attempts,
        "left_out": list(copied.left_out),
    }
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    out.print(f"{target}: {told['events']} events up to {_moment(last)}, {copied.arrays} arrays", highlight=False)
    for line in copied.left_out:
        err.print(f"left out: {line}", style="yellow", markup=False, highlight=False)


def _text(path: Path) -> str:
    from artesian.storage.files import storage

    with storage(path):
        return path.read_bytes().decode(errors="replace").strip()


def _act(act: Mapping[str, Any]) -> str:
    return f"{act['kind']} {act['client'] or act['to']}"


def _complained(problem: Mapping[str, Any]) -> str:
    return problem["problem"] + (" (a server needs it)" if problem["needed"] else " (a server can go on without it)")


def _moment(seconds: float | None) -> str:
    """A time of the wall clock, in UTC."""
    if seconds is None:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

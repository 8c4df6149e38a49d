"""Commands that change a federation: members, models, rollback, forget. On a running server, or on a stopped store."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from artesian.cli.application import AsJson, app
from artesian.cli.console import out, print_table, say_age, show
from artesian.cli.target import Authority, Certificate, Target, Token, TokenFile, aimed, reading
from artesian.errors import SettingError

if TYPE_CHECKING:
    from artesian.server.operating import Operator

members_app = typer.Typer(no_args_is_help=True, help="List the members of a federation, and decide about one.")
models_app = typer.Typer(no_args_is_help=True, help="Export the models of a federation.")
app.add_typer(members_app, name="members", rich_help_panel="Federations")
app.add_typer(models_app, name="models", rich_help_panel="Federations")

Name = Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the member.")]
Why = Annotated[str, typer.Option("--why", help="The reason; it stays in the journal.")]

DECISIONS = {  # what each came to, after the name of the member
    "revoke": "is revoked: its secret is invalid from now on, and it cannot join again unless it is reset",
    "reset": "is reset: it can join again under its name, with a new secret",
    "quarantine": "is quarantined: its uploads are recorded and answered, and not folded",
    "release": "is released: its later uploads are folded again",
}
STANDINGS = {"member": "an ordinary member", "quarantined": "quarantined", "revoked": "revoked", "reset": "reset"}


@members_app.command("list")
@reading
def list_members(target: Target, as_json: AsJson = False) -> None:
    """List every member: samples, last upload, open task, standing, mixture. A stopped store needs no token."""
    rows = _members(target)
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    cells = [
        [row["client"], *(show(row[key]) for key in ("samples", "answered", "open")), row["standing"], _shares(row)]
        for row in rows
    ]
    print_table(["member", "samples", "answered", "open task", "standing", "mixture"], cells, words=["mixture"])


@members_app.command("show")
@reading
def show_member(client: Name, target: Target, as_json: AsJson = False) -> None:
    """Show one member: samples, last upload, open task, standing, mixture. A stopped store needs no token."""
    told = _member(target, client)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for name, value in {**told, "mixture": _shares(told) or None}.items():
        out.print(f"{name:13} {_said(value)}", highlight=False, markup=False)


def _judging(kind: Any, sentence: str) -> Callable[..., None]:
    def judge(client: Name, target: Target, why: Why = "", as_json: AsJson = False) -> None:
        path = f"/v1/members/{quote(client, safe='')}/{kind}"
        told = _acted(target, path, {"why": why}, lambda operator, act: operator.change_standing(kind, client, act))
        _report(told, as_json, _decided(kind, client, told))

    judge.__doc__ = sentence
    return judge


for _kind, _sentence in {
    "revoke": "Make a member's secret invalid at once. It cannot join again under its name unless it is reset.",
    "reset": "Let a wiped device return under its name with a new secret. Its task numbers go on.",
    "quarantine": "Record and answer a member's uploads, and do not fold them.",
    "release": "End a quarantine. Later uploads are folded again.",
}.items():
    members_app.command(_kind)(aimed(_judging(_kind, _sentence)))


@app.command(rich_help_panel="Federations")
@aimed
def rollback(
    to: Annotated[int, typer.Option("--to", metavar="EVENT", help="The event whose state comes back.", min=0)],
    target: Target,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Bring back the state after an event. Task numbers go on, members stay, open tasks are replaced.

    artesian rollback --to 4000 --server https://host:8440 --token-file admin --why "a bad batch of uploads"
    """
    told = _acted(target, "/v1/rollback", {"to": to, "why": why}, lambda operator, act: operator.rollback(to, act))
    _report(told, as_json, f"The state is the one after event {told['to']} again, as version {told['version']}")


@app.command(rich_help_panel="Federations")
@aimed
def forget(client: Name, target: Target, why: Why = "", as_json: AsJson = False) -> None:
    """Make the state what it would be had this member's uploads never been folded, and drop its record.

    artesian forget c07 --server https://host:8440 --token-file admin --why "asked to be forgotten"
    """
    path = f"/v1/members/{quote(client, safe='')}/forget"
    told = _acted(target, path, {"why": why}, lambda operator, act: operator.forget(client, act))
    said = f"{client} is forgotten: the state, version {told['version']}, is the one without its uploads"
    if told["left_out"]:
        said += f"; uploads of others that could not be fed again: {told['left_out']}"
    _report(told, as_json, said)


@models_app.command("export")
def export_models(
    source: Annotated[str, typer.Argument(metavar="STORE|URL", help="A stopped store, or a running server.")],
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The safetensors file to write.")],
    token: Token = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    certificate: Certificate = None,
) -> None:
    """Write every cluster under its ordinary parameter names to a safetensors file; nothing in it is about a client.

    artesian models export ./store models.safetensors
    """
    from artesian.storage.files import write_file

    remote = source.startswith(("http://", "https://"))
    server, store = (source, None) if remote else (None, Path(source))
    target = Target(server, store, None, token, token_file, ca, certificate)
    models = target.ask("GET", "/v1/models") if remote else _stored_models(Path(source))
    write_file(to, models)
    out.print(f"{to}: {len(models):,} bytes", highlight=False, markup=False)


def _stored_models(store: Path) -> bytes:
    """The models of the newest snapshot of a store."""
    from artesian.server.models_file import models_file
    from artesian.storage.blobs import Blobs
    from artesian.storage.reading import read_history, snapshot_of

    history = read_history(store)
    if not history.snapshots:
        raise SettingError(f"No snapshot in the store {store} yet", "Start its server once")
    newest = history.snapshots[-1]
    say_age("the models", newest.events, history.count)
    record = {**json.loads(newest.record), "open_tasks": {}}
    told = {"algorithm": history.about["algorithm"], "layout": history.about["layout"]}
    return models_file(snapshot_of(record, Blobs(store / "blobs", create=False)).state, newest.events, told)


def _member(target: Target, client: str) -> Any:
    if target.server is not None:
        return json.loads(target.ask("GET", f"/v1/members/{quote(client, safe='')}"))
    found = [row for row in _members(target) if row["client"] == client]
    if not found:
        raise SettingError(f"No member is called {client!r}", "List them: artesian members list")
    return found[0]


def _members(target: Target) -> list[dict[str, Any]]:
    if target.server is not None:
        rows: list[dict[str, Any]] = json.loads(target.ask("GET", "/v1/members"))
        return rows
    from artesian.server.serve import describe

    assert target.store is not None
    told = describe(target.store)
    say_age("the members", told["snapshot_at"], told["events"])
    found: list[dict[str, Any]] = told["members"]
    return found


def _acted(target: Target, path: str, body: dict[str, Any], act: Callable[[Operator, Any], Any]) -> dict[str, Any]:
    """Act on the server or the store; what came of it."""
    if target.server is not None:
        told: dict[str, Any] = json.loads(target.ask("POST", path, body))
        return told
    from artesian.core import Act
    from artesian.server.operating import checked_why

    decision = Act("local", checked_why(body["why"]))
    with target.operator() as operator:
        return dict(asyncio.run(_awaited(act(operator, decision))))


def _report(told: dict[str, Any], as_json: bool, sentence: str) -> None:
    """What came of an act: a sentence with the event it became, or one object for machines."""
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    event = "" if told["event"] is None else f" (event {told['event']})"
    out.print(f"{sentence}{event}.", highlight=False, markup=False)


def _decided(kind: str, client: str, told: dict[str, Any]) -> str:
    """What a decision about a member came to."""
    if told["event"] is None:
        return f"Nothing changed: {client} is {STANDINGS[told['member']['standing']]} already"
    return f"{client} {DECISIONS[kind]}"


async def _awaited(work: Any) -> Any:
    return await work


def _said(value: Any) -> str:
    return show(value) if not isinstance(value, bool) else "yes" if value else "no"


def _shares(row: dict[str, Any]) -> str:
    return " ".join(f"{k}={share:.2f}" for k, share in (row["mixture"] or {}).items())

"""Commands for what a server signs and lets in by: tokens, keys."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from artesian.cli.application import AsJson, StorePath, app
from artesian.cli.console import print_table, show
from artesian.errors import SettingError

TokenName = Annotated[str, typer.Argument(help="Name of the token.")]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="Valid for so long, such as 12h, 7d or 4w.")
]

token_app = typer.Typer(no_args_is_help=True, help="Make, list, replace and revoke the tokens of a store.")
app.add_typer(token_app, name="token", rich_help_panel="Federations")
keys_app = typer.Typer(no_args_is_help=True, help="List and replace the keys that sign acknowledgements; check one.")
app.add_typer(keys_app, name="keys", rich_help_panel="Federations")


@token_app.command("make")
def token_make(
    store: StorePath,
    name: TokenName,
    scope: Annotated[str, typer.Option(help="enrol lets clients join; admin sees the metrics.")] = "enrol",
    expires: Expires = None,
    joins: Annotated[
        int | None, typer.Option(help="How many clients may join with it; 1 makes it single-use.", min=1)
    ] = None,
) -> None:
    """Make a token and show it once."""
    if scope not in ("enrol", "admin"):
        raise SettingError(f"--scope must be enrol or admin, not {scope!r}")
    if joins is not None and scope != "enrol":
        raise SettingError("--joins has an effect only with --scope enrol", "Leave it out")
    sys.stdout.write(_tokens(store).make(scope, name, _until(expires), joins) + "\n")


@token_app.command("list")
def token_list(store: StorePath, as_json: AsJson = False) -> None:
    """List the tokens by name, and what is left of them. Their texts are not stored."""
    from artesian.server.tokens import described
    from artesian.storage.reading import read_enrolments

    tokens = _tokens(store)
    rows = described(tokens.all(), read_enrolments(store), time.time())
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    heads = ["name", "scope", "state", "joined", "joins left", "expires"]
    print_table(
        heads, [[show(row[key]) for key in ("name", "scope", "state", "joined", "left", "expires")] for row in rows]
    )


@token_app.command("rotate")
def token_rotate(store: StorePath, name: TokenName, expires: Expires = None) -> None:
    """Replace the text of a token and show the new one. The old one stops working."""
    sys.stdout.write(_tokens(store).rotate(name, _until(expires)) + "\n")


@token_app.command("revoke")
def token_revoke(store: StorePath, name: TokenName) -> None:
    """Revoke a token. A running server notices at once."""
    _tokens(store).revoke(name)


@keys_app.command("list")
def keys_list(store: StorePath, as_json: AsJson = False) -> None:
    """List the public keys, newest first; --json prints what clients check acknowledgements with."""
    published = _keys(store).published()
    if as_json:
        sys.stdout.write(json.dumps(published) + "\n")
        return
    rows = [[key["kid"], key["created"], key.get("retired", "signs")] for key in published["keys"]]
    print_table(["key", "created", "retired"], rows)


@keys_app.command("rotate")
def keys_rotate(store: StorePath) -> None:
    """Sign with a new key from now on. What older keys signed can still be checked."""
    from artesian.server.service import utc

    sys.stdout.write(_keys(store).rotate(utc()).published["kid"] + "\n")


@keys_app.command("verify")
def keys_verify(
    acknowledgement: Annotated[Path, typer.Argument(metavar="FILE", help="File with an acknowledgement.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="Public keys, as GET /v1/keys answers.")],
    upload: Annotated[
        Path | None, typer.Option("--upload", metavar="FILE", help="The upload that it must be about.")
    ] = None,
) -> None:
    """Check an acknowledgement without a server, and print what it says as JSON."""
    from artesian.storage.acknowledgement import verify_acknowledgement

    text, keys, body = _read(acknowledgement), _read(key), _read(upload) if upload else None
    try:
        known = json.loads(keys)
    except ValueError:
        raise SettingError(f"No keys in {key}", "Save the answer to GET /v1/keys there") from None
    told = verify_acknowledgement(text.decode(errors="replace").strip(), known, body)
    sys.stdout.write(json.dumps(asdict(told)) + "\n")


def _tokens(store: Path) -> Any:
    from artesian.server.tokens import Tokens

    _check_store(store)
    return Tokens(store / "tokens.json")


def _keys(store: Path) -> Any:
    from artesian.server.keys import SigningKeys

    _check_store(store)
    return SigningKeys(store / "keys.json")


def _check_store(store: Path) -> None:
    if not (store / "artesian.db").exists():
        raise SettingError(f"No store in {store}: there is no artesian.db", "Serve it once first")


def _until(expires: str | None) -> float | None:
    """When a token expires, in seconds since 1970."""
    from artesian.server.tokens import seconds_of

    return None if expires is None else time.time() + seconds_of(expires)


def _read(path: Path) -> bytes:
    from artesian.storage.files import storage

    with storage(path):
        return path.read_bytes()

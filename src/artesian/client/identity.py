"""Who a client is: a name and a secret, made before it first joins and kept in its home."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from artesian.core import ClientId
from artesian.errors import SettingError, StorageError
from artesian.storage.codec import FORMAT, check_format
from artesian.storage.files import storage, write_file


def identity_in(home: Path, url: str, client: ClientId | None) -> tuple[ClientId, str]:
    """The name and the secret of the client whose home this is; made up where it is new."""
    path = home / "identity.json"
    if not path.exists():
        made = {"format": FORMAT, "client": client or secrets.token_hex(8), "secret": secrets.token_urlsafe(32)}
        write_file(path, json.dumps({**made, "url": url}).encode(), private=True)
    known, secret, address = _read(path)
    if address != url or (client is not None and client != known):
        raise SettingError(
            f"{home} is the home of client {known} of {address}", "Give each client and server its own home"
        )
    return known, secret


def _read(path: Path) -> tuple[ClientId, str, str]:
    """Name, secret and the address of the server."""
    try:
        with storage(path):
            told = json.loads(path.read_bytes())
        check_format(told["format"])
        return told["client"], told["secret"], told["url"]
    except (ValueError, KeyError, TypeError):
        raise StorageError(f"Cannot read who this client is: {path}", "Restore the file") from None

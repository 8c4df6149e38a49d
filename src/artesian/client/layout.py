"""How the federation's models are laid out: fetched once, then kept in the client's home."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from artesian.errors import BadFormat
from artesian.params import Layout
from artesian.storage.files import storage, write_file


def layout_in(home: Path, fetch: Callable[[], bytes]) -> Layout:
    """The layout at home; `fetch` gets the server's description where there is none."""
    path = home / "federation.json"
    if not path.exists():
        told = fetch()
        _layout(told)
        write_file(path, told)
    with storage(path):
        return _layout(path.read_bytes())


def _layout(told: bytes) -> Layout:
    """The layout of a federation, if it is undamaged."""
    try:
        about = json.loads(told)
        layout = Layout.from_json(about["layout"])
        sound = layout.digest == about["layout_digest"]
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise BadFormat("The layout of the federation was damaged on its way", "Try again")
    return layout

"""The files of the live page, and the headers under which a browser runs nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
RULES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": "; ".join(RULES),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    body: bytes
    kind: str
    tag: str  # its ETag

    @classmethod
    def of(cls, path: Path) -> Asset:
        body = path.read_bytes()
        return cls(body, f"{KINDS[path.suffix]}; charset=utf-8", f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    @property
    def headers(self) -> dict[str, str]:
        """A browser asks every time whether it changed: a new version is shown at once."""
        return {"content-type": self.kind, "etag": self.tag, "cache-control": "no-cache"}


@cache
def assets() -> dict[str, Asset]:
    """Every file of the page, by its path below the page's address; the page itself is the empty path."""
    found = {f"page/{path.name}": Asset.of(path) for path in sorted(FOLDER.iterdir()) if path.suffix in KINDS}
    found[""] = found.pop("page/index.html")
    return found


@cache
def page_of_runs() -> Asset:
    """The page as it shows runs: without a login."""
    page = assets()[""]
    body = page.body.replace(b'content="server"', b'content="runs"')
    return Asset(body, page.kind, f'"runs-{page.tag[1:]}')

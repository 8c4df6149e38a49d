"""HTTP to a server: patient with a bad network and a busy server, strict about what comes back."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from artesian.errors import (
    STATUSES,
    ArtesianError,
    BadFormat,
    Busy,
    Conflict,
    MissingExtra,
    ServerFailed,
    SettingError,
    TooSlow,
    Unreachable,
)

try:
    import stamina
except ModuleNotFoundError:
    raise MissingExtra("stamina", "client") from None

SMALL = 1 << 16  # bytes: a body up to here is sent anew rather than continued
REFUSALS = {kind.__name__: kind for kind in STATUSES}
EXPECTED = (200, 202, 204, 304)


class Garbled(Exception):
    """An answer that is not as it was sent: worth asking again."""


class Transport:
    """Requests that are tried again, with jitter, until they are answered or `patience` seconds are over."""

    def __init__(self, url: str, patience: float = 60.0, **options: Any) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        _check_url(self.url)
        self._http = httpx.Client(base_url=self.url, timeout=httpx.Timeout(30.0, read=120.0), **options)

    def send(
        self, method: str, path: str, credential: str, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """An answer, or the error the server names."""
        return self._patiently(lambda: self._once(method, path, credential, headers or {}, **body))

    def upload(self, path: str, credential: str, body: bytes, begun: bool = False) -> httpx.Response:
        """Send a body. After a break it goes on where the server's part ends; `begun`: there may be a part already."""
        tries = int(begun)
        digest = repr_digest(body)

        def attempt() -> httpx.Response:
            nonlocal tries
            tries += 1
            start = self._held(path, credential, body, digest) if tries > 1 and len(body) > SMALL else 0
            if start:
                try:
                    return self._put(path, credential, body, digest, start)
                except (Conflict, BadFormat):  # its part is another than it said, or spoilt: anew, then
                    pass
            return self._put(path, credential, body, digest, 0)

        return self._patiently(attempt)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    # inside

    def _patiently(self, attempt: Callable[[], httpx.Response]) -> httpx.Response:
        end = time.monotonic() + self.patience
        try:
            for turn in stamina.retry_context(
                on=lambda error: _again(error, end - time.monotonic()),
                attempts=None,
                timeout=None,  # the line above knows
                wait_initial=0.1,
                wait_max=min(10.0, self.patience / 4),
            ):
                with turn:
                    return attempt()
        except httpx.TransportError as error:
            got = f"{type(error).__name__} at {self.url}"
            raise Unreachable("a server answers in the end", got, "try again later") from None
        except Garbled:
            raise BadFormat("a task arrives as it was sent", "other bytes", "fetch it again") from None
        raise AssertionError("a retry ends with an answer or an error")

    def _once(self, method: str, path: str, credential: str, headers: Mapping[str, str], **body: Any) -> httpx.Response:
        response = self._http.request(
            method, path, headers={"authorization": f"Bearer {credential}", **headers}, **body
        )
        if response.status_code not in EXPECTED:
            raise _error(response)
        tag = response.headers.get("etag")
        if response.status_code == 200 and tag and hashlib.sha256(response.content).hexdigest() != tag.strip('"'):
            raise Garbled
        return response

    def _put(self, path: str, credential: str, body: bytes, digest: str, start: int) -> httpx.Response:
        """The body from its byte `start` on."""
        headers = {"repr-digest": digest}
        if start:
            headers["content-range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return self._once("PUT", path, credential, headers, content=body[start:])

    def _held(self, path: str, credential: str, body: bytes, digest: str) -> int:
        """How many bytes of this body the server has; 0 also where it cannot say."""
        response = self._http.head(path, headers={"authorization": f"Bearer {credential}"})
        if response.status_code in (429, 503):
            raise _error(response)
        told = response.headers.get("upload-offset", "")
        same = response.status_code == 200 and response.headers.get("repr-digest") == digest
        start = _whole(told) if same else None
        return start if start is not None and start < len(body) else 0


def _check_url(url: str) -> None:
    try:
        parsed = httpx.URL(url)
        sound = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx.InvalidURL:
        sound = False
    if not sound:
        raise SettingError("a server's address begins with http:// or https://", url[:80], "write it out")


def repr_digest(body: bytes) -> str:
    """The SHA-256 of a whole body, as the header Repr-Digest says it."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _again(error: Exception, left: float) -> bool | float:
    """Whether to try again with `left` seconds of patience, perhaps after as long as the server wants."""
    if isinstance(error, (Busy, ServerFailed)) and error.seconds:
        wait = error.seconds * random.uniform(1.0, 1.5)  # who was sent away together does not come back together
        return wait if wait < left else False
    return left > 0 and isinstance(error, (httpx.TransportError, Busy, ServerFailed, TooSlow, Garbled))


def _error(response: httpx.Response) -> ArtesianError:
    """The error a refusal names, or a word about a server that failed."""
    status = response.status_code
    error: ArtesianError
    if status >= 500:
        error = ServerFailed("a server answers", f"status {status}", "try again later")
    else:
        error = _refusal(response)
    if isinstance(error, (Busy, ServerFailed)):
        error.seconds = _whole(response.headers.get("retry-after", "")) or 0
    return error


def _refusal(response: httpx.Response) -> ArtesianError:
    try:
        told = response.json()
        return REFUSALS[told["error"]](str(told["rule"]), str(told["got"]), str(told["remedy"]))
    except (ValueError, KeyError, TypeError):
        got = f"status {response.status_code}"
    if response.status_code in (408, 429):  # of something in between, such as a proxy
        return (TooSlow if response.status_code == 408 else Busy)("a request comes through", got, "try again later")
    return BadFormat("a refusal says what and why", got, "check that this is an Artesian server")


def _whole(text: str) -> int | None:
    """A whole number in a header."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None

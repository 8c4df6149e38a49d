"""HTTP to a server: patient with a bad network and a busy server, strict about what comes back."""

from __future__ import annotations

from typing import Any

import httpx

from artesian import errors
from artesian.errors import ArtesianError, BadFormat, Busy, MissingExtra, ServerFailed, Unreachable

try:
    import stamina
except ModuleNotFoundError:
    raise MissingExtra("stamina", "client") from None


class Transport:
    """Requests that are tried again, with jitter, until they are answered or `patience` seconds are over."""

    def __init__(self, url: str, patience: float = 60.0, **options: Any) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        self._http = httpx.Client(base_url=self.url, timeout=httpx.Timeout(30.0, read=120.0), **options)

    def send(self, method: str, path: str, credential: str, **body: Any) -> httpx.Response:
        """An answer below 400, or the error the server names."""
        try:
            for attempt in stamina.retry_context(
                on=(httpx.TransportError, Busy, ServerFailed),
                attempts=None,
                timeout=self.patience,
                wait_initial=0.1,
                wait_max=10.0,
            ):
                with attempt:
                    return self._once(method, path, credential, **body)
        except httpx.TransportError as error:
            raise Unreachable(
                "a server answers in the end", f"{type(error).__name__} at {self.url}", "try again later"
            ) from None
        raise AssertionError("a retry ends with an answer or an error")

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _once(self, method: str, path: str, credential: str, **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {credential}"}
        response = self._http.request(method, path, headers=headers, **body)
        if response.is_error:
            raise _error(response)
        return response


def _error(response: httpx.Response) -> ArtesianError:
    """The error a refusal names, or a word about a server that failed."""
    if response.status_code >= 500:
        return ServerFailed("a server answers", f"status {response.status_code}", "try again later")
    try:
        told = response.json()
        kind = getattr(errors, told["error"])
        return kind(told["rule"], told["got"], told["remedy"])
    except (ValueError, KeyError, TypeError, AttributeError):
        got = f"status {response.status_code}"
        return BadFormat("a refusal says what and why", got, "check that this is an Artesian server")

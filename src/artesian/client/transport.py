"""HTTP to a server: requests are retried on a bad network or a busy server, and responses are checked."""

from __future__ import annotations

import base64
import hashlib
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from artesian.errors import (
    ArtesianError,
    BadFormat,
    Busy,
    Conflict,
    MissingExtra,
    Refused,
    ServerFailed,
    SettingError,
    TooSlow,
    Unreachable,
)

try:
    import stamina
except ModuleNotFoundError:
    raise MissingExtra("stamina", "client") from None

SMALL = 1 << 16  # bytes: a body up to here is sent again rather than continued
REFUSALS = {kind.__name__: kind for kind in Refused.__subclasses__()}
IN_HEADERS = "Authorization: Bearer"  # how a server says where a credential belongs: no word for a person
EXPECTED = (200, 202, 204, 304)
CERTIFICATES = {9: "is not valid yet", 10: "has expired", 62: "is for another host name", 64: "is for another address"}
OUR_CERTIFICATE = {  # why a server does not take the certificate of a client, by what TLS calls it
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate of this client",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of this client",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this client has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate of this client",
}
HUNG_UP = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)  # the server closed the connection
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
TRUST = "If it was issued by an authority of your own, give that authority's file: ca=..., or --ca FILE"
TLS_REMEDIES = {
    "its certificate is not valid yet": "Check the clock of this machine and the certificate of the server",
    "its certificate has expired": "Renew the certificate of the server, and check the clock of this machine",
    "its certificate is for another host name": "Use the host name in the certificate",
    "its certificate is for another address": "Use the host name in the certificate",
    **dict.fromkeys(
        OUR_CERTIFICATE.values(), "Ask its operator for a certificate, and give it: certificate=..., or --cert"
    ),
    "it does not speak TLS": "Use http://, or start the server with --tls-cert and --tls-key",
}


LOG = logging.getLogger("artesian.client")
SILENT = 3.0  # seconds of retries without a message
logging.getLogger("stamina").addHandler(logging.NullHandler())  # a program without a log does not see every retry


class Garbled(Exception):
    """A response whose bytes do not match its ETag: worth asking again."""


class Transport:
    """Requests that are retried, with jitter, until they are answered or `patience` seconds are over."""

    def __init__(
        self,
        url: str,
        patience: float = 60.0,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        **options: Any,
    ) -> None:
        """PEM files: `ca` holds what to trust instead of the usual authorities, `certificate` our own and its key."""
        self.url, self.patience = url.rstrip("/"), patience
        self.bytes_moved = 0  # bodies sent and received so far, whole ones and broken ones
        self.notify: Callable[[str], object] = LOG.warning  # called when a request has to wait for the server
        self._told: float | None = None  # of which request, by its beginning
        _check_url(self.url)
        if ca is not None or certificate is not None:
            options["verify"] = _secured(self.url, ca, certificate)
        self._http = httpx.Client(
            base_url=self.url, **{"timeout": httpx.Timeout(30.0, connect=10.0, read=120.0), **options}
        )

    def send(
        self, method: str, path: str, credential: str, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """A response, or the error that the server names."""
        return self._patiently(lambda: self._once(method, path, credential, headers or {}, **body))

    def upload(self, path: str, credential: str, body: bytes, begun: bool = False) -> httpx.Response:
        """Send a body. After a break it continues where the server's part ends; `begun`: part of it may be there."""
        tries = int(begun)
        digest = repr_digest(body)

        def attempt() -> httpx.Response:
            nonlocal tries
            tries += 1
            start = self._held(path, credential, body, digest) if tries > 1 and len(body) > SMALL else 0
            if start:
                try:
                    return self._put(path, credential, body, digest, start)
                except (Conflict, BadFormat):  # its part is not what it said, or damaged: send everything
                    pass
            return self._put(path, credential, body, digest, 0)

        return self._patiently(attempt)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # inside

    def _patiently(self, attempt: Callable[[], httpx.Response]) -> httpx.Response:
        began = time.monotonic()
        try:
            for turn in stamina.retry_context(
                on=lambda error: self._again(error, began),
                attempts=None,
                timeout=None,  # `on` decides
                wait_initial=0.1,
                wait_max=min(10.0, self.patience / 4),
            ):
                with turn:
                    return attempt()
        except httpx.TransportError as error:
            raise _unreachable(error, self.url, self.patience) from None
        except Garbled:
            raise BadFormat("The response was damaged on its way", "Try again") from None
        raise AssertionError("a retry ends with an answer or an error")

    def _again(self, error: Exception, began: float) -> bool | float:
        """Whether to try again, perhaps after a while; a long wait is reported once."""
        now = time.monotonic()
        again = _again(error, began + self.patience - now)
        if again and now - began >= SILENT and self._told != began:
            self._told = began
            self.notify(_waiting(error, self.url, now - began, began + self.patience - now))
        return again

    def _once(self, method: str, path: str, credential: str, headers: Mapping[str, str], **body: Any) -> httpx.Response:
        response = self._http.request(
            method, path, headers={"authorization": f"Bearer {credential}", **headers}, **body
        )
        self.bytes_moved += len(body.get("content", b"")) + len(response.content)
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
        local = url.startswith(("127.", "localhost", "[::1]"))
        example = f"http://{url}" if local else "https://host:8440"
        raise SettingError(f"Not the address of a server: {url[:80]!r}", f"Write it as {example}")


def repr_digest(body: bytes) -> str:
    """The SHA-256 of a whole body, as the header Repr-Digest writes it."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _again(error: Exception, left: float) -> bool | float:
    """Whether to try again with `left` seconds of patience, perhaps after as long as the server wants."""
    if isinstance(error, (Busy, ServerFailed)) and error.seconds:
        wait = error.seconds * random.uniform(1.0, 1.5)  # clients refused together do not come back together
        return wait if wait < left else False
    if tls_problem(error):
        return False
    return left > 0 and isinstance(error, (httpx.TransportError, Busy, ServerFailed, TooSlow, Garbled))


def tls_problem(error: BaseException) -> str:
    """Why a TLS connection can never be made, in words; empty if trying again may help."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        kind = CERTIFICATES.get(cause.verify_code, "is not trusted")
        return f"its certificate {kind} ({cause.verify_message})"
    reason = cause.reason if isinstance(cause, ssl.SSLError) else ""
    return "it does not speak TLS" if reason in NOT_TLS else OUR_CERTIFICATE.get(reason, "")


def _waiting(error: Exception, url: str, waited: float, left: float) -> str:
    """The message of a long wait: since when, why, and until when."""
    problem = error.problem if isinstance(error, ArtesianError) else f"no answer ({type(error).__name__})"
    until = datetime.now().astimezone() + timedelta(seconds=left)
    return f"{url}: {problem} for {waited:.0f} s; trying again until {until:%H:%M:%S}, {left:.0f} s more"


def _unreachable(error: Exception, url: str, patience: float) -> Unreachable:
    if problem := tls_problem(error):
        return Unreachable(f"No secure connection to {url}: {problem}", TLS_REMEDIES.get(problem.split(" (")[0], TRUST))
    return Unreachable(f"No answer from {url} in {patience:g} s ({type(error).__name__})", _remedy(error, url))


def _remedy(error: Exception, url: str) -> str:
    if isinstance(error, httpx.ConnectError):
        return "Check that the server runs, and its address"
    if isinstance(error, HUNG_UP) and url.startswith("https://"):  # as many do without a word of TLS
        return (
            "Try again later. A server that asks clients for certificates hangs up on one without a valid one: "
            "give yours with certificate=..., or --cert"
        )
    return "Try again later"


def _secured(url: str, ca: str | Path | None, certificate: str | Path | None) -> ssl.SSLContext:
    """TLS that trusts the certificates in one file, or the usual ones, and shows the certificate in another."""
    if not url.startswith("https://"):
        given = "certificate authority" if ca is not None else "certificate"
        raise SettingError(f"{url} is not encrypted, so no {given} is needed", "Use https://, or leave it out")
    context = _trusting(Path(ca)) if ca is not None else httpx.create_ssl_context()
    if certificate is not None:
        _identify(context, Path(certificate))
    return context


def _trusting(ca: Path) -> ssl.SSLContext:
    if not ca.is_file():
        raise SettingError(f"No such file: {ca}", "Give the file of your certificate authority")
    try:
        return ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(f"No certificates in {ca}: {error}", "Give a file in PEM format") from None


def _identify(context: ssl.SSLContext, certificate: Path) -> None:
    if not certificate.is_file():
        raise SettingError(f"No such file: {certificate}", "Give the file of your own certificate and its key")
    try:
        context.load_cert_chain(certificate, password="")  # a key with a password fails here, and asks nobody
    except (ssl.SSLError, OSError) as error:
        problem = f"No certificate with its key in {certificate}: {error}"
        raise SettingError(problem, "Give one PEM file with both, the key without a password") from None


def _error(response: httpx.Response) -> ArtesianError:
    """The error that a response names; of a server that failed, the status."""
    error = _failure(response) if response.status_code >= 500 else _refusal(response)
    if isinstance(error, (Busy, ServerFailed)):
        error.seconds = _whole(response.headers.get("retry-after", "")) or 0
    return error


def _failure(response: httpx.Response) -> ServerFailed:
    """A server that failed, in its own words if it has any."""
    status = response.status_code
    try:
        body = response.json()
        return ServerFailed(f"The server failed with status {status}: {body['rule']}", f"{body['remedy']}")
    except (ValueError, KeyError, TypeError):
        return ServerFailed(f"The server failed with status {status}", "Try again later")


def _refusal(response: httpx.Response) -> ArtesianError:
    try:
        body = response.json()
        problem = f"{body['rule']}: got {body['got']}" if body["got"] else str(body["rule"])  # `got`: an older server's
        return REFUSALS[body["error"]](problem, str(body["remedy"]))
    except (ValueError, KeyError, TypeError):
        status = response.status_code
    if status in (408, 429):  # of something in between, such as a proxy
        return (TooSlow if status == 408 else Busy)(f"The request was refused with status {status}", "Try again later")
    return BadFormat(f"Status {status} without a reason", "Check that this is an Artesian server")


def _whole(text: str) -> int | None:
    """A whole number in a header."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None

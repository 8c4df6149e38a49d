"""P14: a server with a certificate speaks TLS 1.2 and newer, and nothing else; a client trusts whom it is told to.

One that asks for client certificates serves those of its authority, and nobody else.
"""

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from promises.federation import APP, launcher, until

from artesian.client.transport import Transport
from artesian.errors import Unreachable

pytestmark = pytest.mark.heavy
WAYS = ("newest", "1.3", "1.2", "1.1", "plain", "untrusted", "other name", "library", "silent")
MUTUAL = ("certified 1.3", "certified 1.2", "none", "another authority", "expired", "certified library")


def certificate(folder, name: str, address: str = "IP:127.0.0.1") -> tuple[str, str]:
    """A certificate that is its own authority, and its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*made, "-addext", f"subjectAltName={address}", "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return cert, key


def speak(port: int, context: ssl.SSLContext | None, name: str = "127.0.0.1") -> str:
    """The version and the first line of an answer; what went wrong otherwise."""
    try:
        with socket.create_connection(("127.0.0.1", port), 20) as link:
            if context is None:
                return f"plain {asked(link)}"
            with context.wrap_socket(link, server_hostname=name) as safe:
                return f"{safe.version()} {asked(safe)}"
    except ssl.SSLCertVerificationError:
        return "not trusted"
    except OSError:
        return "refused"


def asked(link: socket.socket) -> str:
    link.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    return link.recv(100).split(b"\r\n")[0].decode(errors="replace")


def only(version: ssl.TLSVersion, ca: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = context.maximum_version = version
    return context


def silent_for(port: int) -> float:
    """How long the server waits for a handshake that never comes."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        while link.recv(100):
            pass
    return time.monotonic() - began


def trusts(port: int, ca: str | None, own: str | None = None) -> bool:
    transport = Transport(f"https://127.0.0.1:{port}", 10.0, ca, own)
    try:
        return transport.send("GET", "/healthz", "nobody").status_code == 200
    except Unreachable:
        return False
    finally:
        transport.close()


def check_handshakes(port: int, ca: str, other: str) -> None:
    """Every way to open a connection ends as it should."""
    trusting = ssl.create_default_context(cafile=ca)
    assert speak(port, trusting) == "TLSv1.3 HTTP/1.1 200 OK"
    assert speak(port, only(ssl.TLSVersion.TLSv1_3, ca)) == "TLSv1.3 HTTP/1.1 200 OK"
    assert speak(port, only(ssl.TLSVersion.TLSv1_2, ca)) == "TLSv1.2 HTTP/1.1 200 OK"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        ancient = only(ssl.TLSVersion.TLSv1_1, ca)
    ancient.set_ciphers("ALL:@SECLEVEL=0")
    assert speak(port, ancient) == "refused"
    assert "200" not in speak(port, None)
    assert speak(port, ssl.create_default_context(cafile=other)) == "not trusted"
    assert speak(port, trusting, "elsewhere.example") == "not trusted"
    assert trusts(port, ca) and not trusts(port, other) and not trusts(port, None)
    assert 0.5 < silent_for(port) < 20


def signed(folder, name: str, ca: str, ca_key: str, days: int = 2) -> str:
    """A client's certificate of an authority and its key, in one file."""
    request, cert, key = (str(folder / f"{name}.{kind}") for kind in ("csr", "crt", "key"))
    made = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request]
    issued = ["openssl", "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", "7", "-out", cert]
    for command in (made, [*issued, "-days", str(days)]):
        subprocess.run(command, check=True, capture_output=True)
    both = folder / f"{name}.pem"
    both.write_text(Path(cert).read_text() + Path(key).read_text())
    return str(both)


def showing(ca: str, own: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """TLS of a client that shows a certificate."""
    context = only(version, ca)
    if own is not None:
        context.load_cert_chain(own)
    return context


def check_mutual(port: int, ca: str, own: str, other: str, expired: str) -> None:
    """Only a certificate of the authority opens a connection."""
    assert speak(port, showing(ca, own)) == "TLSv1.3 HTTP/1.1 200 OK"
    assert speak(port, showing(ca, own, ssl.TLSVersion.TLSv1_2)) == "TLSv1.2 HTTP/1.1 200 OK"
    for wrong in (None, other, expired):
        assert "200" not in speak(port, showing(ca, wrong))
        assert "200" not in speak(port, showing(ca, wrong, ssl.TLSVersion.TLSv1_2))
    assert trusts(port, ca, own) and not trusts(port, ca) and not trusts(port, ca, other)


def serving(folder, words: list[str], ready: Callable[[int], bool]) -> Iterator[int]:
    """A server with these options, until it is stopped."""
    (folder / "served.py").write_text(APP)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "log").touch()
    start = ["serve", "served:federation", "--store", "store", "--port", str(port), "--set", "grace=1", *words]
    pid = launcher().start(start, folder, folder / "log")
    until(lambda: "serving toy at https://" in (folder / "log").read_text())
    until(lambda: ready(port))
    yield port
    os.kill(pid, signal.SIGTERM)
    assert launcher().wait(pid, 30) == 0


@pytest.fixture
def served(tmp_path):
    cert, key = certificate(tmp_path, "own")
    for port in serving(tmp_path, ["--tls-cert", cert, "--tls-key", key], lambda port: trusts(port, cert)):
        yield port, cert


@pytest.fixture
def asking(tmp_path):
    """A server that asks clients for a certificate; its own, and those of three clients."""
    folder = tmp_path / "asking"
    folder.mkdir()
    cert, key = certificate(folder, "server")
    authority, stranger = certificate(folder, "authority"), certificate(folder, "stranger")
    own, other = signed(folder, "device", *authority), signed(folder, "thief", *stranger)
    expired = signed(folder, "retired", *authority, days=-1)
    words = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority[0]]
    for port in serving(folder, words, lambda port: trusts(port, cert, own)):
        yield port, cert, own, other, expired


def test_every_way_to_open_a_connection_ends_as_it_should(served, asking, tmp_path, promise) -> None:
    assert promise("handshakes") == len(WAYS) + len(MUTUAL)
    other, _ = certificate(tmp_path, "other")
    check_handshakes(*served, other)
    check_mutual(*asking)


def test_a_server_that_takes_any_client_would_be_seen(served, asking) -> None:
    port, cert = served
    with pytest.raises(AssertionError):
        check_mutual(port, cert, *asking[2:])


def test_a_server_with_another_certificate_would_be_seen(served, tmp_path) -> None:
    other, _ = certificate(tmp_path, "other")
    with pytest.raises(AssertionError):
        check_handshakes(served[0], other, other)

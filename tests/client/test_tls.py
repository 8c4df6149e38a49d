"""TLS: an own certificate authority, and a connection that cannot be made says why at once."""

import http.server
import ssl
import subprocess
import threading
import time

import httpx
import pytest

from artesian.client.transport import Transport, _unreachable
from artesian.errors import SettingError, Unreachable


class Ok(http.server.BaseHTTPRequestHandler):
    """Says ok."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_) -> None:
        """Say nothing."""


def certificate(folder, name: str, days: str = "2"):
    """A self-signed certificate for a name or address, which is its own authority."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", days, "-subj", "/CN=test"]
    command += ["-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def serve():
    started = []

    def start(cert=None, key=None, client_ca=None) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ok)
        if cert is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        started.append((server, thread))
        return f"https://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str, ca=None, own=None) -> bytes:
    transport = Transport(url, 60.0, ca, own)
    try:
        return transport.send("GET", "/", "token").content
    finally:
        transport.close()


def test_an_own_authority_is_trusted_where_it_is_given(serve, tmp_path) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    assert ask(serve(cert, key), cert) == b"ok"


@pytest.mark.parametrize(
    ("name", "trusted", "words"),
    [
        ("IP:127.0.0.1", False, r"its certificate is not trusted \(self.signed certificate\)\. If .* --ca FILE"),
        ("DNS:elsewhere.example", True, r"its certificate is for another address .* Use the host name"),
    ],
)
def test_a_certificate_that_does_not_fit_is_named_at_once(serve, tmp_path, name, trusted, words) -> None:
    cert, key = certificate(tmp_path, name)
    url, began = serve(cert, key), time.monotonic()
    with pytest.raises(Unreachable, match=words):
        ask(url, cert if trusted else None)
    assert time.monotonic() - began < 20  # of 60 seconds of patience


def test_an_expired_certificate_is_named_at_once(serve, tmp_path) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    request, old = tmp_path / "request.pem", tmp_path / "old.pem"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    made = ["openssl", "req", "-new", "-key", str(key), "-subj", "/CN=old", "-out", str(request)]
    subprocess.run(made, check=True, capture_output=True)
    signed = ["openssl", "x509", "-req", "-in", str(request), "-CA", str(cert), "-CAkey", str(key), "-set_serial", "2"]
    signed += ["-days", "-1", "-extfile", str(tmp_path / "names"), "-out", str(old)]
    if subprocess.run(signed, capture_output=True).returncode:
        pytest.skip("this openssl makes no expired certificates")
    with pytest.raises(Unreachable, match="its certificate has expired"):
        ask(serve(old, key), cert)


def test_a_server_without_tls_is_named_at_once(serve) -> None:
    with pytest.raises(Unreachable, match="it does not speak TLS"):
        ask(serve())


def test_a_file_without_certificates_is_refused(tmp_path) -> None:
    with pytest.raises(SettingError, match="No such file: nowhere"):
        Transport("https://localhost", ca="nowhere.pem")
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(SettingError, match="No certificates in"):
        Transport("https://localhost", ca=tmp_path / "ca.pem")
    with pytest.raises(SettingError, match="is not encrypted"):
        Transport("http://localhost", ca=tmp_path / "ca.pem")


def one_file(folder, name: str):
    """A certificate and its key, as a client keeps them."""
    (folder / name).mkdir()
    cert, key = certificate(folder / name, "IP:127.0.0.1")
    own = folder / f"{name}.pem"
    own.write_text(cert.read_text() + key.read_text())
    return own, cert


def test_a_client_shows_its_own_certificate(serve, tmp_path) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    own, authority = one_file(tmp_path, "own")
    url = serve(cert, key, authority)
    assert ask(url, cert, own) == b"ok"
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"it asks for a certificate of this client. Ask its operator .* or --cert"):
        ask(url, cert)
    other, _ = one_file(tmp_path, "other")
    with pytest.raises(Unreachable, match="it does not trust the certificate of this client"):
        ask(url, cert, other)
    assert time.monotonic() - began < 20  # of 60 seconds of patience


def test_a_client_certificate_that_cannot_be_used_is_refused(tmp_path) -> None:
    cert, _ = certificate(tmp_path, "IP:127.0.0.1")
    with pytest.raises(SettingError, match=r"No such file: nowhere\.pem"):
        Transport("https://localhost", certificate="nowhere.pem")
    with pytest.raises(SettingError, match=r"No certificate with its key in .*: .* Give one PEM file with both"):
        Transport("https://localhost", certificate=cert)  # no key
    with pytest.raises(SettingError, match="http://localhost is not encrypted, so no certificate is needed"):
        Transport("http://localhost", certificate=cert)


def test_a_server_that_hangs_up_is_named_as_one_that_may_ask_for_a_certificate() -> None:
    for url, hint in (("https://localhost", "asks clients for certificates"), ("http://localhost", "Try again later")):
        told = _unreachable(httpx.RemoteProtocolError("Server disconnected"), url, 1.0)
        assert hint in told.remedy and ("--cert" in told.remedy) == url.startswith("https")

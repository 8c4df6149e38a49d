"""TLS of a server: its certificate, and the authority whose clients alone may connect."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artesian.errors import SettingError


@dataclass(frozen=True)
class Tls:
    """The files of a server that speaks TLS, all in PEM format."""

    cert: Path  # the certificate chain
    key: Path
    client_ca: Path | None = None  # clients must show a certificate of this authority; None: they need none

    def __post_init__(self) -> None:
        options = (("--tls-cert", self.cert), ("--tls-key", self.key), ("--tls-client-ca", self.client_ca))
        for option, path in options:
            if path is not None and not path.is_file():
                raise SettingError(f"No such file: {path}", f"Check {option}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if "ENCRYPTED" not in self.key.read_text(errors="replace"):  # else uvicorn asks for its password when it starts
            _load_chain(context, self.cert, self.key)
        if self.client_ca is not None:
            _load_authority(context, self.client_ca)

    @property
    def options(self) -> dict[str, Any]:
        """What uvicorn is given."""
        told: dict[str, Any] = {"ssl_certfile": self.cert, "ssl_keyfile": self.key}
        if self.client_ca is not None:
            told |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return told


def tls_of(host: str, cert: Path | None, key: Path | None, client_ca: Path | None, insecure: bool) -> Tls | None:
    """The TLS that was asked for. Plain HTTP beyond this machine is refused unless the operator insists."""
    if (cert is None) != (key is None):
        raise SettingError("Only one of --tls-cert and --tls-key was given", "Give both")
    if cert is not None and key is not None:
        return Tls(cert, key, client_ca)
    if client_ca is not None:
        raise SettingError("Only TLS can ask clients for certificates", "Give --tls-cert and --tls-key, too")
    if not insecure and not _local(host):
        raise SettingError(
            f"Plain HTTP at {host} would send models and secrets unencrypted",
            "Give --tls-cert and --tls-key, or --insecure behind a proxy",
        )
    return None


def _local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        problem = f"{cert} and {key} are not a certificate and its key: {error}"
        raise SettingError(problem, "Give both in PEM format") from None


def _load_authority(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(f"No certificates in {file}: {error}", "Give --tls-client-ca in PEM format") from None

"""Where an operator's command acts: on a running server, or on a stopped store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from artesian.cli.console import say_waiting
from artesian.errors import SettingError, Unauthorized, UnknownClient

if TYPE_CHECKING:
    from artesian.server.operating import Operator

Server = Annotated[str | None, typer.Option("--server", metavar="URL", help="Address of a running server.")]
StoreFolder = Annotated[Path | None, typer.Option("--store", help="Folder of a store that no server uses.")]
Source = Annotated[
    str | None, typer.Option("--federation", metavar="SOURCE", help="With --store: what artesian serve serves from it.")
]
Token = Annotated[str | None, typer.Option(envvar="ARTESIAN_ADMIN_TOKEN", help="The admin token, with --server.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="File with the admin token.")]
Authority = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="Certificates to trust, in PEM format.")]
Certificate = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="Your certificate and its key, in one PEM file.")
]


ADMIN_TOKEN = "Give a valid admin token: --token-file, or ARTESIAN_ADMIN_TOKEN. artesian token list STORE lists them"
MEMBERS = "Check the name: artesian members list shows all"


@dataclass(frozen=True)
class Target:
    """Where a command acts, on a running server or on a stopped store; its fields are options."""

    server: Server = None
    store: StoreFolder = None
    federation: Source = None
    token: Token = None
    token_file: TokenFile = None
    ca: Authority = None
    certificate: Certificate = None

    def __post_init__(self) -> None:
        if self.server is not None and self.store is not None:
            raise SettingError("The command acts on a server or on a store", "Give only one of --server and --store")
        if self.server is None and self.store is None:
            raise SettingError("The command needs a server or a store", "Give --server URL, or --store FOLDER")

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The bytes that a running server answers."""
        from artesian.client.transport import IN_HEADERS, Transport

        assert self.server is not None
        transport = Transport(self.server, patience=10.0, ca=self.ca, certificate=self.certificate, timeout=None)
        transport.notify = say_waiting
        try:
            return transport.send(method, path, self._credential(), **({} if body is None else {"json": body})).content
        except Unauthorized as error:
            remedy = ADMIN_TOKEN if IN_HEADERS in error.remedy else error.remedy
            raise Unauthorized(error.problem, remedy) from None
        except UnknownClient as error:
            raise UnknownClient(error.problem, MEMBERS) from None
        finally:
            transport.close()

    def _credential(self) -> str:
        if self.token_file is not None and not self.token_file.is_file():
            raise SettingError(f"No such file: {self.token_file}", "Check --token-file")
        told = self.token_file.read_text().strip() if self.token_file is not None else self.token
        if not told or not (told.isascii() and told.isprintable()):
            raise SettingError("No admin token was given", "Give --token or --token-file, or set ARTESIAN_ADMIN_TOKEN")
        return told

    @contextmanager
    def operator(self) -> Iterator[Operator]:
        """The operator of a stopped store, which is opened as its server would."""
        from artesian.config.federations import load_served
        from artesian.execution.threads import single_threaded
        from artesian.server.operating import Operator
        from artesian.server.service import Service
        from artesian.storage.store import Store

        assert self.store is not None
        if not (self.store / "artesian.db").exists():
            raise SettingError(f"No store in {self.store}: there is no artesian.db", "Serve it once first")
        if self.federation is None:
            raise SettingError(
                "A stopped store is changed by the federation's own code", "Give --federation, as to artesian serve"
            )
        federation, settings = load_served(self.federation)
        with single_threaded(federation.model):
            store = Store(self.store, federation.identity)
            try:
                service = Service.open(federation, store, retain=settings.retention)
            except BaseException:
                store.close()
                raise
            try:
                yield Operator(service)
            finally:
                service.close()


def aimed(command: Callable[..., None], without: Sequence[str] = ()) -> Callable[..., None]:
    """The command with options that say where it acts, but for some, in place of its parameter `target`."""
    fields = signature(Target, eval_str=True).parameters
    options = {name: field for name, field in fields.items() if name not in without}
    parameters: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        parameters += options.values() if name == "target" else (parameter,)

    @wraps(command)
    def run(**told: Any) -> None:
        command(target=Target(**{name: told.pop(name) for name in options}), **told)

    vars(run)["__signature__"] = signature(command).replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


reading = partial(aimed, without=("federation",))  # a stopped store is read without its code

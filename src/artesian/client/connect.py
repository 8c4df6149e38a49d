"""A client's session as people use it: with a learner, or with a torch network of their own, refreshed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from artesian.client.asynchronous import AsyncSession
from artesian.client.session import Session
from artesian.client.transport import Transport
from artesian.core import ClientId, Ensemble, Recipe
from artesian.errors import SettingError


def connect(
    url: str,
    *,
    token: str,
    home: str | Path,
    client: ClientId | None = None,
    patience: float = 60.0,
    recipes: Iterable[Recipe | str] = (),
    **options: Any,
) -> Client:
    """A session with the server at `url`; `home` is this client's own folder, and keeps it the same client.

    `recipes` are client halves of your own that tasks may name: `Recipe` values, or `module:name`.
    """
    return Client(Transport(url, patience, **options), token, Path(home), client, recipes)


def connect_async(
    url: str, *, token: str, home: str | Path, client: ClientId | None = None, **options: Any
) -> AsyncSession:
    """As `connect`, for asyncio: `async with connect_async(...) as client: await client.refresh(learner)`."""
    return AsyncSession(connect(url, token=token, home=home, client=client, **options))


class Client(Session):
    """One client of one federation; see `Session` for what it does besides."""

    def refresh(
        self,
        learner: Any,
        loader: Any = None,
        *,
        wait: float = 30.0,
        changed: bool = False,
        loss: Callable[..., Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Ensemble:
        """Train by the task's recipe, upload, and return what to predict with now.

        With a learner, that is all; `changed` tells that its data are others than before. With a torch network and a
        `loader` of (input, target) pairs, the network is trained and the answer loaded into it, in place; `loss` gives
        one number per sample, `optimizer` is a function from parameters to a torch optimiser that goes before the
        task's, and `options` are those of `TorchModel`.
        """
        if loader is None:
            if loss or optimizer or options or not hasattr(learner, "samples"):
                got = f"{type(learner).__name__} without a loader"
                raise SettingError("a refresh takes a learner, or a network and its loader", got, "give the loader")
            return super().refresh(learner, wait=wait, changed=changed)
        from artesian.learners.user_network import OwnNetwork

        own = OwnNetwork(learner, loader, loss, optimizer, options)
        own.check(self.layout)
        held = super().refresh(own.learner, wait=wait, changed=changed)
        own.load(self.layout, held)
        return held

"""Connect a client to a server: `connect(...).refresh(...)`, with a learner or with a torch network of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from artesian.client.asynchronous import AsyncSession
from artesian.client.in_use import Refreshed
from artesian.client.session import Session
from artesian.client.transport import Transport
from artesian.client.watch import Watch
from artesian.core import ClientId, Ensemble, Learner, Recipe
from artesian.drift.detector import Detector
from artesian.drift.policy import Policy
from artesian.errors import SettingError
from artesian.recipes.accepting import SHARE, Accept


def connect(
    url: str,
    *,
    token: str,
    home: str | Path,
    client: ClientId | None = None,
    patience: float = 60.0,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    recipes: Iterable[Recipe | str] = (),
    **options: Any,
) -> Client:
    """Open a client of the federation that is served at `url`. Close it, or use it in a `with` statement.

    Args:
        url: The address of the server.
        token: The enrolment token the operator gave out. It is needed only to join.
        home: This client's own folder: its name, its secret, its newest model, an upload on its way. With the same
            folder it is the same client again, also after a crash.
        client: A name to join under. Without one, a name is made up and kept in `home`.
        patience: Seconds to go on trying while the server cannot be reached. After a few seconds of it a warning
            in the log `artesian.client` says so, and until when.
        ca: A file with the certificates (PEM) to trust instead of the usual ones, such as that of an own authority.
        certificate: A file with this client's own certificate and its key (PEM), for a server that asks for one.
        recipes: Client halves of your own that tasks may name: `Recipe` values, or `module:name`.
        options: Options of the HTTP client (`httpx.Client`), such as `proxy`.
    """
    return Client(Transport(url, patience, ca, certificate, **options), token, Path(home), client, recipes)


def connect_async(
    url: str, *, token: str, home: str | Path, client: ClientId | None = None, **options: Any
) -> AsyncSession:
    """The same as `connect`, for asyncio: `async with connect_async(...) as client: await client.refresh(learner)`."""
    return AsyncSession(connect(url, token=token, home=home, client=client, **options))


class Client(Session):
    """One client of one federation, as `connect` returns it: a `Session` that also takes torch networks."""

    def refresh(
        self,
        learner: Any,
        loader: Any = None,
        *,
        wait: float = 30.0,
        changed: bool = False,
        tune: int = 0,
        accept: Accept = "better",
        hold_back: float = SHARE,
        keep_training: bool = False,
        report: bool = False,
        loss: Callable[..., Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Refreshed:
        """Fetch the task, train, upload, and return the models to predict with now.

        Args:
            learner: A learner, or a torch network. A network is trained in place, and ends as what is returned.
            loader: With a network: its data, as batches of (input, target).
            wait: Seconds to wait for a task while a round is open.
            changed: Say that the client's data changed since the last time.
            tune: Train what comes back for so many epochs on this client's data before using it. That stays here.
            accept: "better" returns the best of what was trained, what came back, the mean of the two and what was
                used before, judged on data held back from training. Where too few data can be held back, it
                is the mean of what was trained and what came back; `why` of the result says so. "always" returns what
                came back, and holds nothing back.
            hold_back: The share of the data to hold back, above 0 and at most 0.5.
            keep_training: Where what was used before is better than all that this refresh brought, train it on as
                well: a second training, by the task's plan, of a model that stays here.
            report: Tell the server, with the next upload, how this refresh changed the score on the data held back, and
                whether `changed` was given: its operator sees them on the live page. Off unless asked for.
            loss: With a network: a function of output and target that gives one number per sample.
            optimizer: With a network: a function from its parameters to a torch optimiser, instead of the task's.
            options: With a network: options of `TorchModel`.
        """
        how: dict[str, Any] = {"wait": wait, "changed": changed, "tune": tune}
        how |= {"accept": accept, "hold_back": hold_back, "keep_training": keep_training, "report": report}
        if loader is None:
            if loss or optimizer or options or not isinstance(learner, Learner):
                problem = f"refresh got a {type(learner).__name__} without a loader"
                raise SettingError(problem, "Give it a learner, or a network and its loader")
            return super().refresh(learner, **how)
        from artesian.learners.user_network import OwnNetwork

        own = OwnNetwork(learner, loader, loss, optimizer, options)
        own.check(self.layout)
        held = super().refresh(own.learner, **how)
        own.load(self.layout, held)
        return held

    def watch(self, policy: Policy | str = "drift", detectors: Sequence[Detector | str] = ("ks",)) -> Watch:
        """A watch that says when this client should refresh. It remembers in this client's home.

        Args:
            policy: When to refresh, such as "(drift or age 7d) and budget 10/day".
            detectors: What looks for drift: names, or what `detector` makes.
        """
        return Watch(policy, detectors, client=self)

    def draw_now(
        self,
        learner: Any = None,
        loader: Any = None,
        *,
        samples: int = 0,
        accept: Accept = "better",
        hold_back: float = SHARE,
        loss: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Refreshed:
        """Use the model that the server has for this client now. Nothing is trained or uploaded; the task stays open.

        Args:
            learner: What judges the model beside the one in use: a learner, or a torch network with its loader, which
                ends as what is returned. A network alone gets the model as it is; without any, nothing is judged.
            loader: With a network: its data, as batches of (input, target).
            samples: A client that has not joined yet joins with so many, where it gives no data.
            accept: "better" uses the model unless what is in use is clearly better on the data held back. "always"
                uses it as it is.
            hold_back: The share of the data to hold back, as at a refresh.
            loss: With a network and a loader: a function of output and target that gives one number per sample.
            options: With a network and a loader: options of `TorchModel`.
        """
        how: dict[str, Any] = {"samples": samples, "accept": accept, "hold_back": hold_back}
        if loader is None and (loss or options):
            raise SettingError("draw_now got options of a network without a loader", "Give it the loader, too")
        if loader is None and (learner is None or isinstance(learner, Learner)):
            return super().draw_now(learner, **how)
        from artesian.learners.user_network import OwnNetwork, load

        if loader is None:
            drawn = super().draw_now(samples=samples)
            load(learner, self.layout, drawn)
            return drawn
        own = OwnNetwork(learner, loader, loss, None, options)
        own.check(self.layout)
        held = super().draw_now(own.learner, **how)
        own.load(self.layout, held)
        return held

    def previous(self, network: Any = None) -> Ensemble:
        """Go back to what this client used before its last refresh, and return it. Nothing is sent.

        Args:
            network: A torch network to load it into, as `refresh` does.
        """
        held = super().previous()
        if network is not None:
            from artesian.learners.user_network import load

            load(network, self.layout, held)
        return held

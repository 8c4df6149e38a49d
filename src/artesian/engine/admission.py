"""What is kept of a task, and what must hold before its answer touches the state. A check refuses, or says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from artesian.core import ClientId, Member, Receipt, State, Task, Upload
from artesian.errors import (
    BadClient,
    BadMixture,
    Conflict,
    NotFinite,
    TaskClosed,
    Unauthorized,
    UnknownTask,
    WrongModels,
)
from artesian.params import Layout, Params, blended, clipped
from artesian.storage.codec import digest

METRICS = 64  # numbers a client may send along
MOST_SAMPLES = (1 << 53) - 1  # that every JSON reader can hold exactly


def check_client(client: ClientId, samples: int) -> None:
    """An id that can be shown and stored, and a count that can be weighed."""
    named = isinstance(client, str) and 0 < len(client) <= 200 and client.isprintable()
    if not named or "/" in client or client in (".", ".."):
        raise BadClient(
            f"{repr(client)[:80]} cannot be a client's id", "Use 1 to 200 printable characters without a slash"
        )
    if type(samples) is not int or not 0 <= samples <= MOST_SAMPLES:
        raise BadClient(
            f"samples must be a whole number from 0 to {MOST_SAMPLES}, not {samples!r}", "Send the number of samples"
        )


def check_name(client: ClientId) -> None:
    """Of a newcomer: an id that no other looks like."""
    if client != client.strip() or "\ufffd" in client:
        raise BadClient(f"{client!r} cannot be a newcomer's id", "Use UTF-8, and no spaces at its ends")


def check_welcome(client: ClientId, member: Member | None) -> None:
    """A member that the operator revoked may not act, and may not join again."""
    if member is not None and member.revoked:
        raise Unauthorized(f"The operator revoked client {client}", "Ask the operator to reset it")


def check_upload(state: State, upload: Upload, receipt: Receipt) -> None:
    """The models the task asks for, of the right shape, and finite numbers everywhere: the one scan of an upload."""
    check_client(upload.client, upload.samples)
    if sorted(upload.models) != sorted(receipt.wanted):
        raise WrongModels(
            f"The upload holds the models {sorted(upload.models)} instead of {list(receipt.wanted)}",
            f"Follow the recipe {receipt.recipe} of the task",
        )
    for params in upload.models.values():
        state.layout.check(params)
    if len(upload.metrics) > METRICS or any(len(name) > 100 for name in upload.metrics):
        raise BadClient(f"The upload carries more than {METRICS} metrics, or one with a long name", "Leave some out")
    if not all(isfinite(number) for number in upload.metrics.values()):
        raise NotFinite(f"The metrics hold NaN or Inf: {dict(upload.metrics)}", "Leave these out")


def check_mixture(state: State, upload: Upload, receipt: Receipt) -> None:
    """Shares of clusters that exist now: others may have split them while the upload was measured."""
    if receipt.estimates and upload.mixture is None:
        raise BadMixture(
            f"Recipe {receipt.recipe} sends a mixture, and the upload has none", "Follow the recipe of the task"
        )
    for cluster, share in (upload.mixture or {}).items():
        if cluster not in state.clusters or not 0 <= share <= 1:
            raise BadMixture(
                f"The mixture says {cluster} = {share}",
                f"Name {', '.join(state.clusters)}, each with a share in [0, 1]",
            )


def check_retry(upload: Upload, member: Member) -> None:
    """An upload that answers no open task must be a retry of the last one accepted."""
    if upload.number < 1 or upload.number > member.number:
        raise UnknownTask(
            f"There was never a task {upload.number} for client {upload.client}: the last was {member.number}",
            "Fetch the task again",
        )
    if upload.number != member.answered:
        raise TaskClosed(
            f"Task {upload.number} of client {upload.client} is not open any more: it was answered or withdrawn",
            "Fetch the task again; the server may have gone on without this one",
        )
    if digest(upload) != member.digest:
        raise Conflict(
            f"Client {upload.client} answered task {upload.number} before, with another body",
            "Fetch the task, and answer that one",
        )


def clip_upload(layout: Layout, upload: Upload, origins: Mapping[str, Params | None], longest: float) -> Upload:
    """The upload, its models no further than `longest` from where they began."""
    models = {k: clipped(layout, params, origins[k], longest) for k, params in upload.models.items()}
    same = all(models[k] is params for k, params in upload.models.items())
    return upload if same else replace(upload, models=models)


def origins_of(layout: Layout, upload: Upload, task: Task) -> dict[str, Params | None]:
    """Where the training of every model of an upload began; None for a change, which begins at zero."""
    if task.settings.get("delta"):
        return dict.fromkeys(upload.models)
    several = not set(upload.models) <= set(task.models)  # one trained from several began at their blend
    blend = _blend(layout, task, upload) if several else None
    return {k: task.models.get(k, blend) for k in upload.models}


def _blend(layout: Layout, task: Task, upload: Upload) -> Params:
    """Where a client began that trained one model from several."""
    told = upload.mixture or {}
    total = sum(told.values())  # shares need not sum to 1; a blend's do
    shares = {k: share / total for k, share in told.items()} if total else None
    return blended(layout, task.models, shares)


def receipt_of(task: Task) -> Receipt:
    """What the server remembers of a task it hands out."""
    return Receipt(
        number=task.number,
        base=task.base,
        recipe=task.recipe,
        models=tuple(task.models),
        mixture=task.mixture,
        digest=digest(task),
        solo=task.solo,
        pause=task.pause,
        memo=task.memo,
        wanted=tuple(task.models) if task.returns is None else task.returns,
        estimates=task.estimates,
    )

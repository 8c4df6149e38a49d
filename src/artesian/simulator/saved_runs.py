"""Runs opened again: the folder that `simulate` wrote, read back as the `Run` it returned. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from artesian.core import ClientId, ClusterId, Mixture
from artesian.errors import NoRun, StorageError
from artesian.params import Layout, Params
from artesian.simulator.evaluation import CLIENTS, CLUSTERS, columns_of_uploads
from artesian.simulator.export import DISTRIBUTIONS, SHARES, read_all_matrices
from artesian.simulator.folder import read_json
from artesian.simulator.result import Run
from artesian.simulator.table import read_table
from artesian.simulator.watching import TURNS
from artesian.storage.blobs import Blobs
from artesian.storage.codec import check_format
from artesian.storage.files import storage

EXPORTED = {"distributions": DISTRIBUTIONS, "shares": SHARES, "turns": TURNS}  # on request
Mixtures = Mapping[ClientId, tuple[Mixture, Mixture | None]]


@dataclass(frozen=True)
class Saved:
    """The part of a snapshot that a reader wants: not what clients keep, nor the trainings under way."""

    layout: Layout
    params: Mapping[ClusterId, Params]
    mixtures: Mixtures
    lengths: Mapping[str, int]  # of the tables, in bytes
    uploads: int
    version: int
    time: float


def open_run(folder: str | Path, *, unfinished: bool = False) -> Run:
    """Open the run that `simulate(out=folder)` or `artesian simulate --out` kept in a folder.

    The result is the `Run` that `simulate` returned: summary, tables, final models and mixtures. A run that has not
    finished is an error, unless `unfinished` is true: then it is opened as of its last snapshot, with the tables and
    models up to there and a short summary. Opening changes nothing in the folder.

    >>> run = open_run("runs/first")  # doctest: +SKIP
    >>> run.summary["client_after"], run.frame("metrics")  # doctest: +SKIP
    """
    path = Path(folder)
    config = config_of(path)
    if (path / "summary.json").exists():
        return _finished(path, config)
    if not unfinished:
        raise NoRun(
            f"The run in {path} has not finished",
            "Finish it with resume=True (--resume), or open what is there with open_run(folder, unfinished=True)",
        )
    return _unfinished(path, config)


def progress_in(folder: Path) -> dict[str, int]:
    """Uploads of honest clients, rounds and turns of a run as of its newest snapshot; 0 where it has none yet."""
    checkpoint = _newest(folder)
    if checkpoint is None:
        return {"uploads": 0, "rounds": 0, "turns": 0}
    with _sound(folder / "snapshots"):
        totals, rounds = checkpoint["totals"], checkpoint["coordinator"]["state"]["rounds"]
        uploads = totals["uploads"] - totals.get("hostile", 0)
        return {"uploads": uploads, "rounds": rounds, "turns": totals.get("turns", 0)}


def mixtures_in(folder: Path) -> Mixtures:
    """True and estimated mixture of every client: the final ones, or those of the newest snapshot; none before one."""
    if (folder / "mixtures.json").exists():
        return _final_mixtures(folder / "mixtures.json")
    checkpoint = _newest(folder)
    if checkpoint is None:
        return {}
    with _sound(folder / "snapshots"):
        return {client: (true, checkpoint["found"].get(client)) for client, true in checkpoint["true"].items()}


def config_of(path: Path) -> Mapping[str, Any]:
    """What the run was asked to do, if there is a run."""
    if not path.is_dir():
        raise NoRun(f"No such folder: {path}", "Name a folder that simulate wrote")
    if not (path / "config.json").is_file():
        below = sorted(path.glob("*/config.json"))
        hint = f"Name one of the runs below it, such as {below[0].parent}" if below else "Name one that simulate wrote"
        raise NoRun(f"No run in the folder {path}", hint)
    config = read_json(path / "config.json")
    check_format(config.get("format", 0))
    return config


def _finished(path: Path, config: Mapping[str, Any]) -> Run:
    models, layout = _final_models(path / "final"), _layout(path)
    return Run(
        summary=read_json(path / "summary.json"),
        **_tables(path, config, {}),
        models=models,
        params={k: layout.pack(arrays) for k, arrays in models.items()} if layout else {},
        mixtures=_final_mixtures(path / "mixtures.json"),
        folder=path,
        matrices=read_all_matrices(path / "matrices"),
    )


def _unfinished(path: Path, config: Mapping[str, Any]) -> Run:
    saved = _saved(path)
    return Run(
        summary=_short_summary(config, saved),
        **_tables(path, config, saved.lengths),
        models={k: saved.layout.unpack(vector) for k, vector in saved.params.items()},
        params=saved.params,
        mixtures=saved.mixtures,
        folder=path,
        finished=False,
        matrices=read_all_matrices(path / "matrices", saved.uploads),
    )


def _tables(path: Path, config: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, Any]:
    """The tables of a run by name, each up to its length in bytes, or to its end."""
    settings = config.get("experiment", {})
    metrics = columns_of_uploads(settings.get("accept") == "better", bool(settings.get("pool_every")))
    exported = {name: columns for name, columns in EXPORTED.items() if (path / f"{name}.csv").exists()}
    wanted = {"metrics": metrics, "clusters": CLUSTERS, "clients": CLIENTS} | exported
    return {name: read_table(path / f"{name}.csv", columns, lengths.get(name)) for name, columns in wanted.items()}


def _short_summary(config: Mapping[str, Any], saved: Saved) -> dict[str, Any]:
    experiment = config["experiment"]
    return {
        "algorithm": experiment["algorithm"]["name"],
        "preset": experiment["name"],
        "seed": config["seed"],
        "uploads": saved.uploads,
        "virtual_time": saved.time,
        "versions": saved.version,
    }


def _final_models(folder: Path) -> dict[ClusterId, dict[str, np.ndarray]]:
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: (len(path.stem), path.stem))
    if not paths:
        raise StorageError(f"No final models in {folder}", "Restore the folder from a copy, or run it again")
    return {path.stem: _model(path) for path in paths}


def _model(path: Path) -> dict[str, np.ndarray]:
    with storage(path):
        data = path.read_bytes()
    with _sound(path):
        return dict(sorted(load(data).items()))  # they come in any order


def _final_mixtures(path: Path) -> Mixtures:
    """True and estimated mixture of every client; none of a run that an older version wrote."""
    if not path.exists():
        return {}
    pairs = read_json(path)
    with _sound(path):
        return {client: (pair["true"], pair["estimated"]) for client, pair in pairs.items()}


def _layout(path: Path) -> Layout | None:
    """How the models of a run are laid out as vectors, or None where its snapshots were deleted."""
    checkpoint = _newest(path)
    with _sound(path / "snapshots"):
        return Layout.from_json(checkpoint["coordinator"]["state"]["layout"]) if checkpoint is not None else None


def _saved(path: Path) -> Saved:
    checkpoint, blobs = _newest(path), Blobs(path / "blobs")
    if checkpoint is None:
        raise NoRun(f"The run in {path} has no snapshot yet", "Wait for the first, or start the run again")
    with _sound(path / "snapshots"):
        state, found = checkpoint["coordinator"]["state"], checkpoint["found"]
        return Saved(
            layout=Layout.from_json(state["layout"]),
            params={k: blobs.get(cluster["params"]["$blob"]) for k, cluster in state["clusters"].items()},
            mixtures={client: (true, found.get(client)) for client, true in sorted(checkpoint["true"].items())},
            lengths=checkpoint["tables"],
            uploads=checkpoint["totals"]["uploads"],
            version=state["version"],
            time=checkpoint["now"],
        )


def _newest(path: Path) -> Any:
    """The newest snapshot as a tree, or None where there is none."""
    snapshots = sorted((path / "snapshots").glob("*.json"))
    if not snapshots:
        return None
    data = read_json(snapshots[-1])
    check_format(data.get("format", 0))
    return data.get("checkpoint", {})


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """A file that does not hold what was written is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise StorageError(f"{path} is damaged: {error!r}", "Restore the file from a copy") from None

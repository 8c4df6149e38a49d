"""The result of a run: one value, returned by `simulate` and by `open_run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from artesian.core import ClientId, ClusterId, Matrix, Mixture
from artesian.errors import MissingExtra, NoRun, SettingError
from artesian.params import Params
from artesian.simulator.folder import read_json
from artesian.storage.journal import read_journal

if TYPE_CHECKING:
    import pandas

Rows = Literal["metrics", "clusters", "clients", "distributions", "shares", "turns", "journal"]


@dataclass(frozen=True, repr=False)
class Run:
    """The result of a run: a summary, tables, final models and mixtures.

    A table is a mapping from column names to arrays; its columns are explained in the reference of the run folder.
    """

    summary: Mapping[str, Any]
    """The figures of the whole run by name, such as `client_after`: what `summary.json` holds."""
    metrics: Mapping[str, np.ndarray]
    """A table with one row per upload."""
    clusters: Mapping[str, np.ndarray]
    """A table with one row per evaluation of a cluster."""
    clients: Mapping[str, np.ndarray]
    """A table with one row per evaluation of all clients."""
    models: Mapping[ClusterId, Mapping[str, np.ndarray]]
    """The final model of each cluster, as arrays by parameter name."""
    params: Mapping[ClusterId, Params]
    """The same models as vectors. Empty where a run was opened whose `snapshots` were deleted."""
    mixtures: Mapping[ClientId, tuple[Mixture, Mixture | None]]
    """The true and the estimated mixture of each client's newest data; None where the algorithm estimates none."""
    folder: Path | None = None
    """Where the run is kept, if it is."""
    finished: bool = True
    """False for a run that was opened before its end."""
    distributions: Mapping[str, np.ndarray] = field(default_factory=dict)
    """A table with one row per evaluation, cluster and distribution. Empty without the setting `export`."""
    shares: Mapping[str, np.ndarray] = field(default_factory=dict)
    """A table with one row per upload and cluster: true and estimated share. Empty without `export`."""
    turns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """A table with one row per turn of a client that decides when to refresh. Empty without the table `[watch]`."""
    matrices: Mapping[int, Mapping[str, Matrix]] = field(default_factory=dict)
    """Matrices of the algorithm, such as similarities of clients, by uploads and name. Empty without `export`."""

    def __repr__(self) -> str:
        told = self.summary
        return f"Run({told['preset']} {told['algorithm']} seed {told['seed']}, {told['uploads']} uploads)"

    def table(self) -> str:
        """The summary as two columns of text; below it, why figures are missing where the run has not finished."""
        width = max(len(key) for key in self.summary)
        rows = [f"{key:<{width}}  {_plain(value)}" for key, value in self.summary.items()]
        return "\n".join([*rows, *self._missing()])

    def _missing(self) -> list[str]:
        """What a reader of the summary must know."""
        empty = "no upload yet: metrics, clusters and clients are empty" if not len(self.metrics["upload"]) else ""
        unfinished = "" if self.finished else "not finished: this is the run as of its last snapshot"
        return [line for line in (unfinished, empty, alike_words(self.summary)) if line]

    @property
    def config(self) -> Mapping[str, Any]:
        """What opened the run: every setting as it was resolved, the seed, version and commit. Needs `folder`."""
        return read_json(self._kept() / "config.json")

    @property
    def journal(self) -> list[dict[str, Any]]:
        """Every event in order: who joined, uploaded and left, and what was measured. Needs `folder`."""
        return read_journal(self._kept() / "journal.jsonl")

    def frame(self, name: Rows = "metrics") -> pandas.DataFrame:
        """A table or the journal as a pandas data frame. Needs pandas."""
        rows = self._rows(name)
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "pandas") from None
        return pandas.DataFrame(rows)

    def _rows(self, name: Rows) -> Any:
        if name == "journal":
            return self.journal
        tables = {"metrics": self.metrics, "clusters": self.clusters, "clients": self.clients}
        tables |= {"distributions": self.distributions, "shares": self.shares, "turns": self.turns}
        if name not in tables:
            raise SettingError(f"A run has no table {name!r}", f"Name one of {', '.join(tables)} or journal")
        return tables[name]

    def _kept(self) -> Path:
        if self.folder is None:
            raise NoRun("This run was not kept in a folder", "Give simulate a folder: out=...")
        return self.folder


def alike_words(summary: Mapping[str, Any]) -> str:
    """Which clusters the estimate of mixtures could not tell apart; nothing where it could tell all."""
    pairs = [" and ".join(pair) for pair in summary.get("alike", ())]
    return f"the estimate cannot tell apart {', '.join(pairs)}: clients get equal shares of them" if pairs else ""


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)

"""What a client tells the server about its refreshes, where it was asked to: three numbers in the metrics of an upload.

`score_before` and `score_after` are the scores of what it used before its last refresh and since, on the samples that
it held back then. They come with the next upload: when one is sent, its answer cannot be judged yet. `drift` is 1 where
the client says that its data changed, else 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from artesian.core import Fit
from artesian.errors import StorageError
from artesian.recipes.accepting import Choice
from artesian.storage.files import storage, write_file


class Reports:
    """The outcome of a client's last refresh, kept at home until the next upload."""

    def __init__(self, home: Path) -> None:
        self._path = home / "outcome.json"

    def metrics(self, changed: bool) -> dict[str, float]:
        """What the next upload says."""
        return {**self._outcome(), "drift": float(changed)}

    def keep(self, choice: Choice) -> None:
        """Remember how a refresh went; nothing where it could not be judged."""
        found = {"score_before": choice.scores.get("previous"), "score_after": choice.scores.get(choice.won)}
        known = {name: score for name, score in found.items() if score is not None and isfinite(score)}
        write_file(self._path, json.dumps(known if len(known) == len(found) else {}).encode())

    def _outcome(self) -> dict[str, float]:
        if not self._path.exists():
            return {}
        with storage(self._path):
            data = self._path.read_bytes()
        try:
            told = {name: float(score) for name, score in json.loads(data).items()}
            if not all(map(isfinite, told.values())):
                raise ValueError("a score that a server would refuse, and with it every upload")
            return told
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise StorageError(f"Cannot read {self._path}", "Delete it: it holds only the last scores") from None


def with_metrics(fit: Fit, metrics: Mapping[str, float]) -> Fit:
    """What was trained, with more to tell the server."""
    return replace(fit, upload=replace(fit.upload, metrics={**fit.upload.metrics, **metrics})) if metrics else fit

"""Leagues made by hand, for tests that run nothing."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from artesian.config.experiments import load
from artesian.leagues.file import League, Method, Venue
from artesian.leagues.plan import LeaguePlan, Pair, PlannedRun


def pair(world: str, method: str, seeds: tuple[int, ...] = (0, 1), **more: Any) -> Pair:
    told: dict[str, Any] = {"source": "digits-2", "changes": (), "algorithm": "cdfl", "length": 10, "unit": "uploads"}
    told |= {"classifies": True, "settings": "0" * 64, **more}
    told["changes"] = (f"algorithm.name={told['algorithm']}", *told["changes"])
    if "experiment" not in told:
        told["experiment"] = settings(told["source"], told["changes"])
    return Pair(world=world, method=method, seeds=seeds, **told)


@cache
def settings(source: str, changes: tuple[str, ...]) -> dict[str, Any]:
    return load(source, changes).planned().describe()


def plan(*pairs: Pair) -> LeaguePlan:
    methods, worlds = (dict.fromkeys(names) for names in ([p.method for p in pairs], [p.world for p in pairs]))
    venues = [Venue(w, "digits-2", (0, 1), tuple(p.method for p in pairs if p.world == w)) for w in worlds]
    return LeaguePlan(League(tuple(Method(m, (f"tune={i}",)) for i, m in enumerate(methods)), tuple(venues)), pairs)


def summary(after: float, **more: Any) -> dict[str, Any]:
    return {"client_after": after, "uploads": 10, "bytes_up": 20_000, "bytes_down": 40_000, "wall_seconds": 1.0, **more}


def line(run: PlannedRun, **more: Any) -> str:
    told: dict[str, Any] = {"world": run.pair.world, "method": run.pair.method, "seed": run.seed}
    told |= {"experiment": run.pair.experiment, "artesian": "0.1.0", "commit": None, "summary": summary(0.5)}
    return json.dumps(told | more) + "\n"


def finish(folder: Path, run: PlannedRun, text: str = "{}") -> None:
    told = {"artesian": "0.1.0", "seed": run.seed, "experiment": run.pair.experiment}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "summary.json").write_text(text)

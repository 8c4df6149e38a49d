"""The tables of benchmarks/drift_policies.py, by hand; nothing is run but two small cells."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "drift_policies.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drift_policies", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drift_policies"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def test_figures_are_compared_with_always_and_the_oracle_seed_by_seed(bench, tmp_path) -> None:
    results = tmp_path / "results.jsonl"
    told = [
        ("always", 0, 0.9, 1000, {}),
        ("always", 1, 0.8, 1000, {}),
        ("oracle", 0, 0.85, 200, {}),
        ("ks", 0, 0.81, 300, {"detection_delay": 1.0, "missed_drifts": 2, "false_alarm_rate": 0.002, "drifts": 9}),
        ("ks", 1, 0.76, 100, {"detection_delay": 2.0, "missed_drifts": 4, "false_alarm_rate": 0.004, "drifts": 11}),
    ]
    for policy, seed, in_use, size, more in told:
        summary = {"in_use": in_use, "bytes_up": size / 2, "bytes_down": size / 2, "refreshes": size / 10, **more}
        bench.record(bench.Cell("drift-sudden", policy, seed), summary, results)
    lines = list(bench.shown(bench.cells(["drift-sudden"], ["always", "oracle", "ks"], [0, 1]), results))
    assert lines[0] == "\ndrift-sudden, 2 seeds\n"
    assert lines[-1] == "| ks | 0.785 | 92.5% | 20.0% | 0.040 | 20 | 10 | 1.5 | 3 | 0.0030 | 0.01 |"
    assert lines[-3] == "| always | 0.850 | 100.0% | 100.0% | -0.050 | 100 | - | - | - | - | - |"


def test_what_has_ended_is_not_run_again(bench, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(bench.WORLDS, "drift-sudden", ("drift-sudden", ["turns=8", "world.clients=4"]))
    wanted = bench.cells(["drift-sudden"], ["never", "ks"], [0])
    bench.run_all(wanted[:1], tmp_path / "runs", tmp_path / "results.jsonl")
    bench.run_all(wanted, tmp_path / "runs", tmp_path / "results.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(line["policy"], line["turns"]) for line in lines] == [("never", 8), ("ks", 8)]
    assert "alarms" in lines[1] and "alarms" not in lines[0]


def test_the_results_in_the_repository_are_of_known_cells(bench) -> None:
    assert all(cell.world in bench.WORLDS and cell.policy in bench.POLICIES for cell in bench.recorded())

"""Ray on two nodes of this machine: the same bits as in one process, and a loss costs what was under way there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

pytest.importorskip("ray", reason="Ray is not installed")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_nodes.py"


@pytest.fixture(scope="module")
def found() -> dict:
    """What the benchmark says of a short run; a process of its own starts and ends the nodes."""
    told = subprocess.run([sys.executable, SCRIPT, "--json", "--uploads", "60"], capture_output=True, timeout=300)
    assert told.returncode == 0, told.stderr.decode()
    return json.loads(told.stdout.splitlines()[-1])


def test_all_runs_find_the_same_bits(found) -> None:
    assert list(found) == ["inline", "two nodes", "a worker killed", "a node killed"]
    assert len({told["bits"] for told in found.values()}) == 1


def test_both_nodes_train_and_nothing_is_done_twice(found) -> None:
    told = found["two nodes"]
    assert (told["nodes"], told["workers"], told["redone"]) == (2, 3, 0)
    assert told["trainings"] >= 60


def test_workers_of_one_node_see_data_in_one_memory(found) -> None:
    assert found["two nodes"]["memories"] == 2  # of three workers
    assert all(told["private"] == 0 for name, told in found.items() if name != "inline")


def test_a_killed_worker_costs_its_own_training(found) -> None:
    assert found["a worker killed"]["redone"] == 1


def test_a_killed_node_costs_the_trainings_under_way_there(found) -> None:
    assert 1 <= found["a node killed"]["redone"] <= 2  # it had two workers

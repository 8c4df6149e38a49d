"""What the page works out of facts, in the language it is written in."""

import json
import shutil
import subprocess

import pytest
from promises.table import needs

from artesian.dashboard.assets import assets

NODE = shutil.which("node")
RATE = """
import { rate } from "./facts.mjs";
const [clock, step, points, end] = JSON.parse(process.argv[2]);
const uploads = { step, points: new Map(points.map(([time, count]) => [time, [1, count]])) };
console.log(JSON.stringify(rate({ about: { clock, live: false }, series: new Map([["uploads", uploads]]) }, end)));
"""


@pytest.fixture
def rate(tmp_path):
    needs(NODE, "node is not on the PATH")
    body = next(asset.body for path, asset in assets().items() if path.endswith("facts.js"))
    (tmp_path / "facts.mjs").write_bytes(body)
    (tmp_path / "rate.mjs").write_text(RATE)

    def work_out(clock: str, step: float, points: list[list[float]], end: float = 0) -> list[list[float]]:
        words = [NODE, str(tmp_path / "rate.mjs"), json.dumps([clock, step, points, end])]
        return json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)

    return work_out


def test_a_short_series_keeps_its_steps_and_leaves_the_last_one_out(rate) -> None:
    assert rate("wall", 5.0, [[100, 1], [110, 2], [115, 7]]) == [[100, 12], [105, 0], [110, 24]]


def test_rare_uploads_are_shown_to_the_end_in_wider_steps(rate) -> None:
    shown = rate("virtual", 1.0, [[time, 1] for time in range(0, 1601, 16)])  # 1600 steps, of which 101 are occupied
    assert [time for time, _ in shown] == [32 * i for i in range(50)]  # the first doubling with at most 60 steps
    assert {value for _, value in shown} == {2 / 32}


def test_a_run_that_nobody_uploads_to_any_more_goes_on_with_zeros(rate) -> None:
    assert rate("virtual", 1.0, [[0, 3], [1, 1]], end=4) == [[0, 3], [1, 1], [2, 0], [3, 0]]

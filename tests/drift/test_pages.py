"""Every detector and every rule is documented, with the figures that were measured."""

from dataclasses import fields
from pathlib import Path

import pytest

from artesian.drift.detectors import DETECTORS
from artesian.drift.policy_text import RULES

ROOT = Path(__file__).parents[2]
MEASURED = (ROOT / "benchmarks" / "results" / "drift-detectors.md").read_text()


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_every_detector_has_a_page_with_its_settings_and_figures(name) -> None:
    text = (ROOT / "docs" / "drift" / f"{name}.md").read_text()
    for setting in fields(DETECTORS[name]):
        assert f"`{setting.name}`" in text, setting.name
    for title in ("## What it sees", "## What it misses", "## Settings", "## Measured"):
        assert title in text, title
    rows = [line for line in MEASURED.splitlines() if line.startswith(f"| {name} ")]
    shown = [line for line in text.splitlines() if line.startswith((f"| `{name}`", f"| `{name} "))]
    assert len(shown) == len(rows) and rows
    for line in rows:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert any(all(cell in row for cell in cells) for row in shown), line


def test_the_index_names_every_detector() -> None:
    text = (ROOT / "docs" / "drift" / "index.md").read_text()
    for name in DETECTORS:
        assert f"[`{name}`]({name}.md)" in text, name


def test_every_rule_of_a_policys_text_is_on_the_page() -> None:
    text = (ROOT / "docs" / "how-to" / "know-when-to-refresh.md").read_text()
    for name in RULES:
        assert f"`{name}" in text, name

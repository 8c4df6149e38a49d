"""The examples and the README's code run as they are written."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from launching import printed, served

ROOT = Path(__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    return printed(*command, cwd=cwd, COLUMNS="120")


@pytest.mark.heavy
def test_your_own_algorithm_runs_simulated_and_in_process(tmp_path) -> None:
    told = run(sys.executable, str(ROOT / "examples" / "own_algorithm.py"), cwd=tmp_path)
    assert "is_pure, names_its_recipes" in told
    assert "the same bits over HTTP: True" in told
    lines = (ROOT / "examples" / "own_algorithm.py").read_text().splitlines()
    assert len(lines) < 60


@pytest.mark.heavy
def test_your_own_recipe_runs_simulated_in_process_and_over_workers(tmp_path) -> None:
    (tmp_path / "signs.py").write_text((ROOT / "examples" / "own_recipe.py").read_text())
    told = run(sys.executable, "signs.py", cwd=tmp_path)
    assert "is_pure, names_its_recipes" in told
    assert "the same bits over HTTP: True" in told
    (tmp_path / "signs.toml").write_text(
        'uploads = 20\nrecipes = ["signs:SIGNS"]\n'
        '[algorithm]\nname = "signs:SignAverage"\n[world]\nclusters = 2\nclients = 6\n'
    )
    command = (sys.executable, "-m", "artesian.cli", "simulate", "signs.toml", "--json")
    inline, spread = run(*command, cwd=tmp_path), run(*command, "--workers", "1", cwd=tmp_path)
    scores = [json.loads(line.splitlines()[-1])["client_after"] for line in (inline, spread)]
    assert scores[0] == scores[1]


@pytest.mark.heavy
def test_your_own_model_runs_simulated_and_in_process(tmp_path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    told = run(sys.executable, str(ROOT / "examples" / "own_model.py"), cwd=tmp_path)
    assert "1386 numbers are trained, 18 travel with them" in told
    assert "the same bits over HTTP: True" in told


@pytest.mark.heavy
def test_own_data_run_from_their_folder(tmp_path) -> None:
    (tmp_path / "own_data.py").write_text((ROOT / "examples" / "own_data.py").read_text())
    told = run(sys.executable, "own_data.py", cwd=tmp_path)
    assert "client_after" in told


@pytest.mark.heavy
def test_the_quickstart_runs(tmp_path) -> None:
    told = run(sys.executable, str(ROOT / "examples" / "quickstart.py"), cwd=tmp_path)
    assert "confluence" in told
    assert "fedbuff" in told


@pytest.mark.heavy
def test_a_client_refreshes_when_its_data_turn(tmp_path) -> None:
    with served(tmp_path, "digits-2", "--store", "store") as (url, token):
        script = str(ROOT / "examples" / "when_to_refresh.py")
        told = printed(sys.executable, script, url, cwd=tmp_path, ARTESIAN_TOKEN=token)
    words = [line.split(":")[0] for line in told.splitlines()]
    assert words == ["refreshed", *["waits"] * 4, "refreshed", *["waits"] * 4]
    (second,) = [line for line in told.splitlines()[1:] if line.startswith("refreshed")]
    page = " ".join((ROOT / "docs" / "how-to" / "know-when-to-refresh.md").read_text().split())
    assert second in page


@pytest.mark.heavy
def test_an_own_algorithm_runs_from_a_file_by_its_path(tmp_path) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "examples" / "own_algorithm.py").read_text())
    (tmp_path / "mine.toml").write_text(
        'uploads = 20\n[algorithm]\nname = "mine:Median"\nbuffer_size = 4\n[world]\nclusters = 2\nclients = 6\n'
    )
    told = run(sys.executable, "-m", "artesian.cli", "simulate", "mine.toml", "--json", cwd=tmp_path)
    assert '"algorithm": "median"' in told
    assert '"versions": 5' in told


@pytest.mark.heavy
def test_people_as_clients_run_as_the_page_says(tmp_path) -> None:
    page = (ROOT / "docs" / "how-to" / "own-data.md").read_text().split("## People as clients")[1].split("\n## ")[0]
    code, settings = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.S)
    run(sys.executable, "-c", code, cwd=tmp_path)
    (tmp_path / "people.toml").write_text(settings)
    commands = re.findall(r"^    artesian (.*)$", page, re.M)
    assert len(commands) == 2  # with proxies on the server, and without
    for command in commands:
        told = run(sys.executable, "-m", "artesian.cli", *command.split(), "--json", cwd=tmp_path)
        assert json.loads(told.splitlines()[-1])["uploads"] == 120


@pytest.mark.heavy
def test_attackers_cost_what_the_page_says(tmp_path) -> None:
    page = (ROOT / "docs" / "how-to" / "study-attacks.md").read_text()
    (settings,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    (tmp_path / "attacks.toml").write_text(settings)
    commands = re.findall(r"^    artesian (simulate attacks.toml.*)$", page, re.M)
    told = [run(sys.executable, "-m", "artesian.cli", *command.split(), cwd=tmp_path) for command in commands]
    attacked, peaceful = (json.loads(lines.splitlines()[-1]) for lines in told)
    assert attacked["hostile"] == 2 and "hostile" not in peaceful
    said = re.search(r"it falls from about (0\.\d+)\s+to about (0\.\d+)", page)
    assert said is not None
    figures = [
        peaceful["client_after"],
        attacked["client_after"],
    ]  # on any processor: the last bits decide what is left
    assert figures == pytest.approx([float(number) for number in said.groups()], abs=0.03)


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
SERVICE, SIMULATOR = BLOCKS


@pytest.mark.heavy
def test_the_readme_simulates_in_ten_lines(tmp_path) -> None:
    assert len([line for line in SIMULATOR.splitlines() if line.strip()]) <= 10
    told = run(sys.executable, "-c", SIMULATOR.replace("uploads=400", "uploads=40"), cwd=tmp_path)
    assert [line.split()[0] for line in told.splitlines()] == ["confluence", "fedbuff", "local"]


@pytest.mark.heavy
def test_the_readme_serves_in_fifteen_lines(tmp_path) -> None:
    (command,) = re.findall(r"^artesian (serve .*)$", (ROOT / "README.md").read_text(), re.M)
    assert len([line for line in SERVICE.splitlines() if line.strip()]) + 1 <= 15
    _, *words = command.split()
    with served(tmp_path, *words) as (url, token):
        told = printed(sys.executable, "-c", SERVICE, cwd=tmp_path, ARTESIAN_URL=url, ARTESIAN_TOKEN=token)
    said = [line.partition(" ") for line in told.splitlines()]
    scores = [ast.literal_eval(scores)[won] for won, _, scores in said]
    assert len(scores) == 3
    assert min(scores) > 0.5  # guessing would be 0.1

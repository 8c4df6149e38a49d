"""`artesian client` as a user meets it: real processes against a real server."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launching import launcher
from safetensors.numpy import load_file
from servers import Process

from artesian.client.loop import _short
from artesian.core import Task
from artesian.storage.codec import decode


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process(tmp_path_factory.mktemp("federation") / "server")
    yield made
    made.kill()


def command(server: Process, home: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "artesian.cli", "client", server.url, "--home", str(home), *options]


def run(server: Process, home: Path, *options: str, code: int = 0, token: bool = True) -> str:
    words = command(server, home, *options)[3:]
    told = launcher().run(*words, cwd=server.folder, timeout=60, ARTESIAN_TOKEN=server.token if token else "")
    assert told.returncode == code, told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    return told.stdout if code == 0 else " ".join(told.stderr.split())


@pytest.mark.heavy
def test_it_refreshes_so_many_times_and_goes_on_later(server, tmp_path) -> None:
    home = tmp_path / "home"
    told = run(server, home, "--learner", "points:learner", "--client", "c1", "--times", "2", "--json")
    first, second = (json.loads(line) for line in told.splitlines())
    assert (first["client"], first["answered"], first["task"], first["samples"]) == (
        "c1",
        1,
        2,
        32,
    )  # of 40; 8 are held back
    assert (second["answered"], second["task"]) == (2, 3)
    assert second["before"] == first["after"]
    assert sum(second["mixture"].values()) == pytest.approx(1)
    again = run(server, home, "--learner", "points:learner", token=False)  # who joined needs no token
    assert again.startswith("client c1, answered 3, samples 32, before ")
    assert " k1=" in again


def test_it_draws_writes_the_model_under_its_names_shows_it_and_leaves(server, tmp_path) -> None:
    home, file = tmp_path / "home", tmp_path / "model.safetensors"
    run(server, home, "--out", str(file), "--samples", "9")
    arrays = load_file(file)
    assert {name: array.shape for name, array in arrays.items()} == {"dense.weight": (2, 2), "dense.bias": (2,)}
    (params,) = decode("task", (home / "task").read_bytes(), Task).models.values()
    assert np.array_equal(np.concatenate([arrays["dense.weight"].ravel(), arrays["dense.bias"]]), params)
    held = json.loads(run(server, home, "--held", "--json", token=False))
    assert (held["task"], held["recipe"], held["upload"], held["models"]) == (1, "train", None, {"blend": 6})
    assert held["settings"]["epochs"] == 5
    assert run(server, home, "--leave") == ""
    assert not (home / "joined").exists()


@pytest.mark.heavy
def test_a_function_makes_the_learner_anew_and_every_goes_on_until_stopped(server, tmp_path) -> None:
    home = tmp_path / "home"
    (server.folder / "growing.py").write_text(
        "from points import MODEL, draw\nturns = []\n"
        "def grow():\n    turns.append(1)\n    return MODEL.learner(*draw(0, seed=1, count=10 * len(turns)))\n"
    )
    process = subprocess.Popen(
        command(server, home, "--learner", "growing:grow", "--every", "0", "--json", "--token", server.token),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=server.folder,
    )
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    refused = run(server, home, "--learner", "points:learner", code=2)
    process.send_signal(signal.SIGINT)
    rest, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on" in complaint
    assert "Another process uses this client's home" in refused
    assert [line["samples"] for line in lines] == [10, 20, 24]  # of 30, from which on 6 are held back
    done = len(lines) + len(rest.splitlines())
    next_one = json.loads(run(server, home, "--learner", "points:learner", "--json"))
    assert next_one["answered"] in (done + 1, done + 2)  # one may have been taken whose line was not written


@pytest.mark.heavy
def test_when_it_refreshes_only_if_the_data_drift_also_after_a_restart(server, tmp_path) -> None:
    home = tmp_path / "home"
    (server.folder / "drifting.py").write_text(
        "from pathlib import Path\nfrom points import MODEL, draw\n"
        "def look():\n    seed = int(Path('seed').read_text())\n    Path('seed').write_text(str(seed + 1))\n"
        "    x, y = draw(1, seed=seed, count=100)\n    return MODEL.learner(x + 4 * (seed > 7), y)\n"
    )
    (server.folder / "seed").write_text("1")
    watching = ["--learner", "drifting:look", "--when", "drift", "--detector", "ks window=50 reference=50 level=0.001"]
    told = []
    for times in ("1", "2", "3", "3"):  # a new process each
        told += run(server, home, *watching, "--times", times, "--every", "0", "--json").splitlines()
    lines = [json.loads(line) for line in told]
    assert [line["refreshed"] for line in lines] == [True, *[False] * 6, True, False]
    assert lines[1]["reason"] == "no drift was found"
    assert lines[7]["reason"].startswith("ks found drift: the features changed in ") and lines[7]["outcome"]
    assert (lines[0]["answered"], lines[7]["answered"]) == (1, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--detector", "ks"], "--detector has an effect only with --when. Add --when drift."),
        (["--when", "drift"], "--when needs a learner, whose data it watches."),
        (["--when", "drifft", "--learner", "points:learner"], "there is no rule 'drifft'. Did you mean 'drift'?"),
        (["--when", "drift", "--detector", "kss", "--learner", "points:learner"], "Did you mean 'ks'?"),
    ],
)
def test_what_is_wrong_with_when_is_said(server, tmp_path, options, words) -> None:
    assert words in run(server, tmp_path / "home", *options, code=2)


def test_every_goes_on_over_failures_that_pass(server, tmp_path) -> None:
    home = tmp_path / "home"
    run(server, home, "--learner", "points:learner")
    identity = json.loads((home / "identity.json").read_text())
    nowhere = "http://127.0.0.1:9"
    (home / "identity.json").write_text(json.dumps({**identity, "url": nowhere}))
    options = ["--learner", "points:learner", "--every", "0", "--times", "3", "--patience", "0"]
    told = launcher().run("client", nowhere, "--home", str(home), *options, cwd=server.folder, timeout=60)
    assert told.returncode == 0
    assert told.stderr.count("No answer from") == 3
    assert "stamina" not in told.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--learner", "points:nothing"], "could not be imported"),
        (["--learner", "points:PLAN"], "points:PLAN is a Plan, neither a Learner nor a function that makes one"),
        (["--learner", "points:draw"], "points:draw() failed: TypeError"),
        (["--held"], "No client lives in"),
        (["--client", "a/b"], "cannot be a client's id"),
        (["--token", "nonsense"], "enrolment token"),
        (["--token", "käse"], "not ASCII"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(server, tmp_path, options, words) -> None:
    assert words in run(server, tmp_path / "home", *options, code=2)


def test_without_a_token_nobody_joins_and_an_address_is_written_out(server, tmp_path) -> None:
    assert "ARTESIAN_TOKEN" in run(server, tmp_path / "home", code=2, token=False)
    assert not (tmp_path / "home").exists()
    told = launcher().run("client", "localhost:8440", "--home", "h", "--token", "t", cwd=tmp_path)
    assert told.returncode == 2
    assert "Not the address of a server" in told.stderr


def test_of_a_long_setting_only_the_length_is_shown() -> None:
    assert _short(0.5) == 0.5
    assert _short({"weights": "x" * 1000}) == "(1,015 characters)"

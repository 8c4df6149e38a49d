"""The Node client of the examples, against a real server process."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from promises.table import needs
from servers import POINTS, Process

from artesian.core import Plan, Task, Upload
from artesian.params import seal
from artesian.recipes.train import asked
from artesian.storage.codec import decode, encode

pytestmark = pytest.mark.heavy
NODE = shutil.which("node")
PLAN = "Plan(epochs=5, rate=0.3)"
SCRIPT = Path(__file__).parent.parent.parent / "examples" / "client.mjs"


@pytest.fixture(autouse=True)
def node() -> None:
    needs(NODE, "node is not on the PATH")


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(algorithm: str, plan: str = PLAN) -> Process:
        started.append(Process(tmp_path / "server", POINTS.replace(PLAN, plan), algorithm))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def run(url: str, token: str, home: Path, times: int = 1, *more: str) -> list[dict]:
    told = subprocess.run(
        [NODE, str(SCRIPT), url, str(home), str(times), *more],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ARTESIAN_TOKEN": token},
    )
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def points(folder: Path):
    """The server's own module, imported under a name of its own."""
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop("points", None)
        import points

        return points
    finally:
        sys.path.remove(str(folder))


def test_it_joins_trains_uploads_and_draws_what_the_server_gives(serve, tmp_path) -> None:
    server, home = serve("CDFL()"), tmp_path / "home"
    lines = run(server.url, server.token, home, 3)
    assert [line["uploaded"] for line in lines] == [1, 2, 3]
    who = json.loads((home / "identity.json").read_text())
    assert (home / "identity.json").stat().st_mode & 0o077 == 0
    given = (home / "task.safetensors").read_bytes()
    assert given == server.task(who["client"], who["secret"])
    assert lines[-1]["mixture"] == pytest.approx(dict(decode("task", given, Task).mixture))
    assert run(server.url, server.token, home)[0]["uploaded"] == 4  # the same client, later
    members = server.stop()
    assert {name: member["answered"] for name, member in members.items()} == {who["client"]: 4}
    assert members[who["client"]]["samples"] == 8


def test_it_draws_between_uploads(serve, tmp_path) -> None:
    server, home, other = serve("CDFL()"), tmp_path / "home", tmp_path / "other"
    run(server.url, server.token, home)
    task = (home / "task.safetensors").read_bytes()
    run(server.url, server.token, other, 2)
    (line,) = run(server.url, server.token, home, 0)
    drawn = decode("task", (home / "drawn.safetensors").read_bytes(), Task)
    assert drawn.number == 0
    assert not np.array_equal(drawn.models["blend"], decode("task", task, Task).models["blend"])
    assert line["moved"].endswith("versions=2")
    assert (home / "task.safetensors").read_bytes() == task
    assert sorted(member["answered"] for member in server.stop().values()) == [1, 2]


def test_it_asks_the_gate_for_its_mixture_as_the_python_client_does(serve, tmp_path) -> None:
    server, home = serve("Confluence()"), tmp_path / "home"
    module = points(server.folder)
    parts = [module.draw(cluster, seed=3, count=count) for cluster, count in ((0, 10), (1, 30))]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    (tmp_path / "data.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))
    (line,) = run(server.url, server.token, home, 1, str(tmp_path / "data.json"))
    task = decode("task", (home / "task.safetensors").read_bytes(), Task)
    told = asked(task, module.MODEL.learner(x, y))
    assert told is not None and line["mixture"] == pytest.approx(told, abs=1e-6)
    assert 0.6 < told["k1"] < 0.9  # of 40 samples 30
    server.stop()


@pytest.mark.parametrize(
    ("algorithm", "plan"),
    [
        ("FedBuff(buffer_size=1)", PLAN),
        ("FedProx(clients_per_round=1, mu=0.5)", PLAN),
        ("FedBuff(buffer_size=1)", "Plan(epochs=5, rate=0.3, momentum=0.5, decay=0.1, schedule='cosine')"),
        ("FedBuff(buffer_size=1)", "Plan(epochs=4, rate=0.3, schedule='linear', cooling=0.5)"),
    ],
)
def test_it_trains_as_the_task_says(serve, tmp_path, algorithm, plan) -> None:
    """With a buffer or a cohort of one, the model drawn back is the one trained: here by the numpy learner, too."""
    server, home = serve(algorithm, plan), tmp_path / "home"
    module = points(server.folder)
    x, y = module.draw(1, seed=3, count=12)
    (tmp_path / "data.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))
    run(server.url, server.token, home, 1, str(tmp_path / "data.json"))
    (drawn,) = decode("task", (home / "task.safetensors").read_bytes(), Task).models.values()
    start = np.mean([np.asarray(p, np.float64) for p in module.federation().start], axis=0).astype(np.float32)
    pulls = [(0.5, start)] if "FedProx" in algorithm else []
    trained = module.MODEL.learner(x, y).train(start, seed=0, plan=module.PLAN, pulls=pulls)
    assert np.abs(drawn - start).max() > 0.05
    np.testing.assert_allclose(drawn, trained, atol=1e-5)
    server.stop()


def test_an_upload_of_an_earlier_life_is_sent_if_it_was_not_taken(serve, tmp_path) -> None:
    server, home = serve("FedBuff(buffer_size=1)"), tmp_path / "home"
    run(server.url, server.token, home)
    who = json.loads((home / "identity.json").read_text())
    task = decode("task", (home / "task.safetensors").read_bytes(), Task)
    change = seal(np.full(task.models["k0"].size, 0.25, np.float32))
    for number in (1, 2):  # the first was taken, and the client died before it heard so; the second was not sent
        upload = Upload(who["client"], number, 8, {"k0": change})
        (home / "upload.safetensors").write_bytes(encode("upload", upload))
        assert run(server.url, server.token, home)[0]["uploaded"] == number
    drawn = decode("task", (home / "task.safetensors").read_bytes(), Task)
    assert drawn.number == 3
    assert np.array_equal(drawn.models["k0"], task.models["k0"] + np.float32(0.25))
    assert server.stop()[who["client"]]["answered"] == 2


def test_a_wrong_token_is_refused_in_words(serve, tmp_path) -> None:
    server = serve("CDFL()")
    command = [NODE, str(SCRIPT), server.url, str(tmp_path / "home"), "1"]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "ARTESIAN_TOKEN": "nonsense"}
    )
    assert told.returncode != 0
    assert "401" in told.stderr
    server.stop()


def test_it_refuses_a_recipe_it_does_not_know(serve, tmp_path) -> None:
    server = serve("IFCA()")
    told = subprocess.run(
        [NODE, str(SCRIPT), server.url, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ARTESIAN_TOKEN": server.token},
    )
    assert told.returncode != 0
    assert "this client knows the recipe train, not pick" in told.stderr
    assert not (tmp_path / "home" / "upload.safetensors").exists()
    server.stop()


@pytest.mark.parametrize(
    ("algorithm", "plan", "words"),
    [
        ("FedBuff(buffer_size=1)", "Plan('adam')", 'the task asks for optimizer = "adam"; this client follows'),
        ("asking(sparsity=0.5)", PLAN, "the task asks for sparsity = 0.5; this client follows no mask"),
        ("asking(keep=True)", PLAN, "the task asks for keep = true; this client follows no model kept"),
        ("asking(magic=1)", PLAN, "this client does not know the setting magic"),
    ],
)
def test_it_refuses_by_name_what_it_cannot_follow(serve, tmp_path, algorithm, plan, words) -> None:
    server = serve(algorithm, plan)
    command = [NODE, str(SCRIPT), server.url, str(tmp_path / "home")]
    environment = {**os.environ, "ARTESIAN_TOKEN": server.token}
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert told.returncode != 0
    assert words in told.stderr
    assert not (tmp_path / "home" / "upload.safetensors").exists()
    server.stop()


def test_it_has_a_word_about_every_setting_of_a_plan() -> None:
    known = SCRIPT.read_text().split("const FOLLOWS = {")[1].split("\n};")[0]
    for setting in fields(Plan):
        assert f"\n  {setting.name}: [" in known, setting.name

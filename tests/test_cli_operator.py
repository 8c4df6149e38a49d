"""The operator's commands: on a running server, and on a store that nobody serves."""

import json
import re
import signal
import sys

import pytest
from promises.federation import APP, SECRET, Process, decode_task
from safetensors.numpy import load_file
from typer.testing import CliRunner

from artesian import cli
from artesian.errors import NotRetained, SettingError, Unauthorized, UnknownClient
from artesian.server.serve import describe


def run(*words: str, **environment: str):
    told = CliRunner().invoke(cli.app, list(words), env=environment)
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        raise told.exception
    assert told.exit_code == 0, told.output
    return told.stdout


@pytest.fixture
def served(tmp_path):
    """A server that two members have uploaded to."""
    server = Process(tmp_path)
    for client in ("c0", "c1"):
        task = server.join(client)
        for _ in range(3):
            task = server.upload(client, task)
    yield server
    if server.poll() is None:
        server.stop(signal.SIGTERM)


@pytest.mark.heavy
def test_every_command_on_a_running_server(served, tmp_path) -> None:
    token = tmp_path / "admin"
    token.write_text(served.token("admin") + "\n")
    there = ["--server", f"http://127.0.0.1:{served.port}", "--token-file", str(token)]
    rows = json.loads(run("members", "list", *there, "--json"))
    assert [(row["client"], row["answered"], row["standing"]) for row in rows] == [
        ("c0", 3, "member"),
        ("c1", 3, "member"),
    ]
    assert "c1\t" in run("members", "list", *there)
    assert json.loads(run("members", "show", "c1", *there, "--json")) == rows[1]
    shown = run("members", "show", "c1", *there).splitlines()
    assert shown[:3] == ["client        c1", f"samples       {rows[1]['samples']}", "answered      3"]
    assert "present       yes" in shown
    for kind, standing in (
        ("quarantine", "quarantined"),
        ("release", "member"),
        ("revoke", "revoked"),
        ("reset", "reset"),
    ):
        told = json.loads(run("members", kind, "c1", *there, "--why", "a test", "--json"))
        assert told["member"]["standing"] == standing
    said = "Nothing changed: c0 is an ordinary member already.\n"
    assert run("members", "release", "c0", *there) == said
    path = tmp_path / "models.safetensors"
    run("models", "export", there[1], str(path), ARTESIAN_ADMIN_TOKEN=served.token("admin"))
    assert "k1/weight" in load_file(path)
    assert json.loads(run("rollback", "--to", "6", *there, "--json"))["to"] == 6
    assert json.loads(run("forget", "c1", *there, "--json"))["left_out"] == 0
    assert [row["client"] for row in json.loads(run("members", "list", *there, "--json"))] == ["c0"]
    with pytest.raises(NotRetained, match="The state after event 1 cannot be rebuilt"):
        run("rollback", "--to", "1", *there)
    with pytest.raises(UnknownClient):
        run("members", "revoke", "nobody", *there)
    with pytest.raises(Unauthorized, match=r"not a valid admin token\. Give a valid admin token: --token-file"):
        run("forget", "c0", *there[:2], "--token", "wrong")
    with pytest.raises(UnknownClient, match="Check the name: artesian members list shows all"):
        run("members", "show", "nobody", *there)


def test_every_command_on_a_stopped_store(served, tmp_path, monkeypatch) -> None:
    assert served.stop(signal.SIGTERM) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "served", raising=False)
    (tmp_path / "served.py").write_text(APP)
    there = ["--store", "store", "--federation", "served:federation"]
    assert [row["client"] for row in json.loads(run("members", "list", *there[:2], "--json"))] == ["c0", "c1"]
    with pytest.raises(SettingError, match="No member is called 'nobody'"):
        run("members", "show", "nobody", *there[:2])
    assert "answered      3\n" in run("members", "show", "c1", *there[:2])
    told = run("models", "export", "store", "models.safetensors")
    assert told == f"models.safetensors: {(tmp_path / 'models.safetensors').stat().st_size:,} bytes\n"
    assert "k0/weight" in load_file(tmp_path / "models.safetensors")
    said = "c0 is quarantined: its uploads are recorded and answered, and not folded (event 9).\n"
    assert run("members", "quarantine", "c0", *there) == said
    said = run("rollback", "--to", "6", *there, "--why", "a test")
    assert re.fullmatch(r"The state is the one after event 6 again, as version \d+ \(event 10\)\.\n", said)
    said = run("forget", "c1", *there)
    assert re.fullmatch(
        r"c1 is forgotten: the state, version \d+, is the one without its uploads \(event 11\).\n", said
    )
    told = describe(tmp_path / "store")
    assert (told["rollback_from"], told["forget_from"], told["events"]) == (11, 0, 11)
    assert [(act["event"], act["kind"], act["by"], act["why"], act["to"]) for act in told["acts"]] == [
        (9, "quarantine", "local", "", 0),
        (10, "rollback", "local", "a test", 6),
        (11, "forget", "local", "", 0),
    ]
    assert re.search(r"10\t20\S+Z\tlocal\trollback 6\ta test\n", run("inspect", "store"))
    assert [event["kind"] for event in told["last"]][-3:] == ["quarantine", "rollback", "forget"]
    assert "standing" in run("inspect", "store")
    served.start()
    task = served.join("c0")
    assert decode_task(task).number == 6  # two acts replaced it
    served.upload("c0", task)
    assert served.request("GET", "/v1/clients/c1/task", SECRET)[0] == 401


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["members", "list"], "needs a server or a store"),
        (["forget", "c0", "--server", "http://127.0.0.1:9", "--store", "x"], "Give only one of --server and --store"),
        (["forget", "c0", "--server", "http://127.0.0.1:9"], "No admin token was given"),
        (["forget", "c0", "--server", "http://127.0.0.1:9", "--token-file", "none"], "No such file: none"),
        (["forget", "c0", "--store", "nowhere"], "No store in nowhere"),
    ],
)
def test_a_command_that_lacks_something_says_so(words, sentence, monkeypatch) -> None:
    monkeypatch.delenv("ARTESIAN_ADMIN_TOKEN", raising=False)
    with pytest.raises(SettingError, match=sentence):
        run(*words)


def test_a_stopped_store_is_changed_by_its_own_code(served, tmp_path) -> None:
    served.stop(signal.SIGTERM)
    with pytest.raises(SettingError, match="Give --federation"):
        run("forget", "c0", "--store", str(tmp_path / "store"))

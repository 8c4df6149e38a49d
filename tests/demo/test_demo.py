"""The demo as a user meets it: real processes, a real kill, a check that can fail, and nothing left behind."""

import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import artesian.demo
from artesian import cli
from artesian.demo import conductor, screen
from artesian.demo.audit import Audit
from artesian.demo.processes import Attendant
from artesian.demo.records import Figures, Records
from artesian.errors import MissingExtra, RunExists, ServerFailed, SettingError, StorageError, StoreDamaged, WorkerLost

SMALL = ("--clients", "4", "--seconds", "2")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "artesian.cli", "demo", *arguments]


def children(parent: int) -> set[int]:
    told = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (line.split() for line in told.splitlines())
    return {int(pid) for pid, above in pairs if int(above) == parent}


def running(pids: set[int]) -> set[int]:
    """Those that still live; a zombie does not."""
    told = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    states = {int(line.split()[0]): line.split()[1] for line in told.splitlines()}
    return {pid for pid in pids if not states.get(pid, "Z").startswith("Z")}


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path) -> Path:
    """Where temporary folders go, so that a test sees what is left of them."""
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@contextmanager
def demo(temporary: Path, *arguments: str, **options) -> Iterator[subprocess.Popen]:
    environment = {**os.environ, "TMPDIR": str(temporary), **options.pop("env", {})}
    process = subprocess.Popen(command(*arguments), env=environment, start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def performed(tmp_path_factory) -> tuple[subprocess.CompletedProcess, set[int], Path]:
    """One whole demo: what it said, the processes it started, the folder it kept."""
    place = tmp_path_factory.mktemp("performed")
    (place / "temporary").mkdir()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with demo(place / "temporary", *SMALL, "--keep", str(place / "kept"), **pipes) as process:
        seen, said = set(), ""
        for line in process.stderr:
            seen |= children(process.pid)
            said += line
        told = process.stdout.read()
        process.wait()
    assert not any((place / "temporary").iterdir())
    return subprocess.CompletedProcess(process.args, process.returncode, told, said), seen, place / "kept"


@pytest.mark.heavy
def test_the_demo_loses_nothing_and_says_so(performed) -> None:
    told, _, _ = performed
    assert told.returncode == 0, told.stderr
    for words in (
        "true k0",
        "est. k0",
        "before a refresh",
        "by which each client chose what it uses",
        "for an even guess",
        "MB saved",
        "1 with SIGKILL",
        "0 acknowledged uploads lost, 0 applied twice",
        "bit by bit",
        "artesian serve --help",
    ):
        assert words in told.stdout, words
    for words in ("4 clients are started", "killed with SIGKILL", "answers again, on the same store and port"):
        assert words in told.stderr, words
    assert "\x1b" not in told.stdout + told.stderr


@pytest.mark.heavy
def test_a_demo_that_stays_serves_its_page_until_it_is_interrupted(temporary) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with demo(temporary, "--clients", "2", "--seconds", "1", "--stay", **pipes) as process:
        said = ""
        while "everything goes on until Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        url, token = re.search(r"live page is at (http://\S+)/ while it runs: sign in with (\S+)", said).groups()
        reply = httpx.post(f"{url}/page/login", json={"token": token}, headers={"origin": url}, trust_env=False)
        assert (reply.status_code, reply.json()["by"]) == (200, "demo-page")
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "0 acknowledged uploads lost, 0 applied twice" in told


@pytest.mark.heavy
def test_nothing_of_the_demo_runs_on(performed) -> None:
    _, seen, _ = performed
    assert len(seen) >= 6  # two lives of the server, four clients
    assert not running(seen)


@pytest.mark.heavy
def test_the_store_holds_what_the_clients_wrote_down(performed) -> None:
    """Counted without the demo's own code."""
    _, _, folder = performed
    seen = []
    for path in (folder / "records").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        seen += [(path.stem, line["acknowledged"]) for line in lines if "acknowledged" in line]
    with sqlite3.connect(folder / "store" / "artesian.db") as database:
        events = [json.loads(record) for (record,) in database.execute("SELECT record FROM events")]
    database.close()
    stored = [(e["client"], e["measured"]["upload"]["number"]) for e in events if e["kind"] == "upload"]
    assert len(seen) >= 8
    assert sorted(seen) == sorted(stored)
    assert (folder / "logs" / "server.log").read_text().count("serving demo at http://127.0.0.1:") == 2  # two lives


@pytest.mark.heavy
def test_the_bytes_are_one_model_up_and_one_down(performed) -> None:
    _, _, folder = performed
    records = Records(folder / "records")
    records.read()
    figures = records.figures()
    size = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert figures.uploads * size < figures.up < figures.uploads * (size + 1000)
    gate = 33 * 11 * 4 * 2 * 4 // 3  # 32 features and a 1, alone and for ten labels, of four clusters, 2 bytes, as text
    again = 4 * (size + gate + 3000)  # a layout each, and the open task once more after the kill
    assert figures.drawn * (size + gate) < figures.down < figures.drawn * (size + gate + 1000) + again


@pytest.mark.heavy
def test_a_doctored_record_fails_the_check(performed) -> None:
    """An upload that a client says was acknowledged, and the store never saw."""
    _, _, folder = performed
    path = folder / "records" / "c001.jsonl"
    before = path.read_bytes()
    assert subprocess.run(command("--check", str(folder)), capture_output=True).returncode == 0
    last = json.loads(before.splitlines()[-1])
    try:
        path.write_bytes(before + json.dumps({**last, "acknowledged": 999}).encode() + b"\n")
        told = subprocess.run(command("--check", str(folder)), capture_output=True, text=True)
    finally:
        path.write_bytes(before)
    assert told.returncode == 1
    assert "1 acknowledged uploads lost, 0 applied twice" in told.stdout
    assert "1 acknowledged uploads lost (c001 number 999)" in " ".join(told.stderr.split())
    assert "Traceback" not in told.stderr


@pytest.mark.heavy
def test_a_state_that_the_events_do_not_lead_to_fails_the_check(performed, monkeypatch) -> None:
    _, _, folder = performed
    real = artesian.demo.audit._replayed

    def less(served, store):
        coordinator = real(served, store)
        coordinator.leave("c000")
        return coordinator

    monkeypatch.setattr(artesian.demo.audit, "_replayed", less)
    with pytest.raises(StoreDamaged, match="another state than the replay"):
        conductor.check(folder)


def test_what_an_audit_complains_about() -> None:
    sound = Audit(acknowledged=2, stored=2, events=3, folds=2, lost=(), twice=(), replayed=True)
    sound.insist()
    broken = Audit(acknowledged=2, stored=3, events=4, folds=2, lost=(("a", 1),), twice=(("b", 2),) * 4, replayed=False)
    assert broken.complaints == [
        "1 acknowledged uploads lost (a number 1)",
        "4 uploads applied twice (b number 2, b number 2, b number 2, ...)",
        "2 folds of 3 uploads",
        "another state than the replay of the events gives",
    ]
    with pytest.raises(StoreDamaged, match="lost") as caught:
        broken.insist()
    assert caught.value.exit_code == 1


@pytest.mark.heavy
def test_ctrl_c_at_a_terminal_takes_everything_away(temporary) -> None:
    """The live screen is up; then Ctrl-C: code 130, no process and no folder left."""
    parent, child = pty.openpty()
    with demo(temporary, "--clients", "3", "--seconds", "60", stderr=child, stdout=child, env={"TERM": "xterm"}) as it:
        os.close(child)
        seen = b""
        while seen.count(b"est. k0") < 3:  # three frames of the live screen
            seen += os.read(parent, 65536)
        processes = children(it.pid)
        assert any(temporary.iterdir())
        os.kill(it.pid, signal.SIGINT)
        try:
            while chunk := os.read(parent, 65536):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        assert it.wait() == 130
    os.close(parent)
    assert len(processes) == 4
    assert not running(processes)
    assert not any(temporary.iterdir())
    assert b"\x1b[" in seen
    assert b"interrupted" in seen
    assert b"Traceback" not in seen


@pytest.mark.thorough
@pytest.mark.heavy
def test_processes_end_with_a_demo_that_is_killed(temporary) -> None:
    with demo(temporary, *SMALL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "clients are started" in line:
                break
        wait_for(lambda: len(children(process.pid)) == 5)
        processes = children(process.pid)
        process.kill()
        wait_for(lambda: not running(processes))


@pytest.mark.heavy
def test_a_server_that_cannot_start_shows_the_end_of_its_log(temporary, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(conductor, "free_port", lambda: taken.getsockname()[1])
        result = CliRunner().invoke(cli.app, ["demo", *SMALL])
    assert isinstance(result.exception, ServerFailed)
    assert result.exception.exit_code == 1
    assert "Cannot listen on 127.0.0.1:" in str(result.exception)
    assert not any(temporary.iterdir())


@pytest.mark.heavy
def test_a_server_that_dies_unasked_is_a_failure(temporary) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with demo(temporary, *SMALL, env={"ARTESIAN_FAILPOINT": "between-commit-and-mark:3"}, **pipes) as process:
        said = process.stderr.read()
    assert process.returncode == 1
    assert "ended with code -9" in said
    assert not any(temporary.iterdir())


@pytest.mark.heavy
def test_a_client_that_fails_shows_the_end_of_its_log(tmp_path) -> None:
    (tmp_path / "logs").mkdir()  # and no file with digits
    client = Attendant("c000", tmp_path, ["artesian.demo.client"], tmp_path / "record", WorkerLost)
    try:
        server = {"url": "http://127.0.0.1:9", "token": "token", "home": str(tmp_path / "home")}
        client.tell({**server, "client": "c000", "clients": 1, "pause": 1.0})
        client.process.wait()
        with pytest.raises(WorkerLost, match=r"(?s)c000 ended with code 1.*digits\.npz"):
            client.check(ending=True)
    finally:
        client.end()


def test_a_missing_extra_answers_with_one_command(monkeypatch) -> None:
    real = artesian.demo.find_spec
    monkeypatch.setattr(artesian.demo, "find_spec", lambda name: None if name == "stamina" else real(name))
    result = CliRunner().invoke(cli.app, ["demo"])
    assert isinstance(result.exception, MissingExtra)
    assert "pip install 'artesian[sim,client,server]'" in str(result.exception)


@pytest.mark.parametrize(
    ("option", "kind", "words"), [("--keep", RunExists, "a new folder"), ("--check", SettingError, "--keep wrote")]
)
def test_a_wrong_folder_is_the_users_mistake(tmp_path, option, kind, words) -> None:
    (tmp_path / "file").write_text("in the way")
    result = CliRunner().invoke(cli.app, ["demo", option, str(tmp_path)])
    assert isinstance(result.exception, kind)
    assert words in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def line(number: int, before: float, after: float, found: dict | None) -> str:
    told = {
        "acknowledged": number,
        "before": before,
        "after": after,
        "true": {"k0": 1.0, "k1": 0.0},
        "estimated": found,
    }
    return json.dumps({**told, "up": 100 * number, "down": 200 * number}) + "\n"


def test_records_are_read_as_they_grow(tmp_path) -> None:
    records, path = Records(tmp_path), tmp_path / "c000.jsonl"
    records.read()
    assert records.figures() is None
    path.write_text('{"sending": 1}\n' + line(1, 0.5, 0.75, None)[:20])
    records.read()
    assert (records.sending, records.acknowledged) == ({"c000": 1}, [])
    path.write_text('{"sending": 1}\n' + line(1, 0.5, 0.75, None))
    (tmp_path / "c001.jsonl").write_text(line(1, 0.5, 0.5, {"k0": 0.5, "k1": 0.5}) + line(2, 1.0, 1.0, {"k0": 1.0}))
    records.read()
    assert (records.sending, records.acknowledged) == ({}, [("c000", 1), ("c001", 1), ("c001", 2)])
    figures = records.figures()
    assert (figures.uploads, figures.drawn, figures.up, figures.down) == (3, 5, 300, 600)
    assert (figures.before, figures.after) == (pytest.approx(2 / 3), pytest.approx(0.75))
    assert figures.divergence == pytest.approx(0.34657359)  # half of ln 2: one guess is even, one is right
    assert figures.even == pytest.approx(0.69314718)
    assert figures.held_back is None


def test_records_hold_what_clients_judged_by(tmp_path) -> None:
    told = [json.loads(line(n, 0.5, 0.5, None)) | {"held_back": pair} for n, pair in ((1, [0.5, 0.75]), (2, None))]
    told += [json.loads(line(3, 0.5, 0.5, None)) | {"held_back": [0.25, 0.75]}]
    (tmp_path / "c000.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    records = Records(tmp_path)
    records.read()
    assert records.figures().held_back == (0.375, 0.75)


@pytest.mark.parametrize("text", ["no JSON\n", '{"acknowledged": 1}\n', "[1]\n", '{"sending": "x"}\n'])
def test_a_record_that_makes_no_sense_is_refused(tmp_path, text) -> None:
    (tmp_path / "c000.jsonl").write_text(text)
    with pytest.raises(StorageError, match="which no client of the demo writes"):
        Records(tmp_path).read()


def test_a_plain_line_is_short_and_the_last_screen_has_every_figure(monkeypatch, capsys, tmp_path) -> None:
    figures = Figures(63, 0.864, 0.866, 0.13, 0.49, 600_000, 800_000, 63, (0.863, 0.884))
    monkeypatch.setattr(Records, "figures", lambda _: figures)
    monkeypatch.setattr(screen, "EVERY", 0.0)
    shown = screen.Screen(("k0", "k1", "k2", "k3"), 9_640)
    progress = screen.DemoProgress(shown, 30.0)
    progress.show(Records(tmp_path), 1.0)
    line = capsys.readouterr().err
    assert line.endswith(
        "uploads 63 acknowledged; accuracy 0.864 before a refresh, 0.866 after it; "
        "mixtures KL 0.13 from the true ones, 0.49 for an even guess\n"
    )
    assert set(shown.figures(figures)) > set(screen.PLAIN)

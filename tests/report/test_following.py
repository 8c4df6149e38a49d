"""Run folders on the live page: read as they are, followed as they grow, and served to this machine alone."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import urllib.request
import zlib
from pathlib import Path

import pytest
from launching import launcher
from promises.federation import until

from artesian.config.experiments import simulate
from artesian.dashboard.streaming import framed
from artesian.errors import NoRun, SettingError, UserError
from artesian.report import following, live_page
from artesian.report.following import FollowedRun, Tail, followed
from artesian.report.live_page import RunsPage

HEAD = "upload,time,client,cycle,version,staleness,before,after,kl,kl_uniform,discrepancy\r\n"


def line(n: int, **record) -> bytes:
    text = json.dumps({"n": n, **record}).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def run_folder(folder: Path, name: str = "toy", seed: int = 0) -> Path:
    """What a run has written that has two uploads behind it and goes on."""
    folder.mkdir(parents=True)
    config = {"format": 1, "seed": seed, "experiment": {"name": name, "algorithm": {"name": "cdfl"}}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "snapshots").mkdir()
    (folder / "metrics.csv").write_text(
        HEAD + "1,1.0,c0,0,1,0,0.5,0.75,,,\r\n2,2.5,c1,0,2,1,0.5,0.25,,,\r\n", newline=""
    )
    (folder / "clusters.csv").write_text("upload,time,cluster,accuracy\r\n2,2.5,k0,0.9\r\n2,2.5,k1,0.8\r\n", newline="")
    events = [
        line(0, time=0.0, kind="join", client="c0", samples=5),
        line(1, time=0.0, kind="join", client="c1", samples=5),
        line(2, time=1.0, kind="upload", client="c0", number=1, appraisals={"k0": 0.5}),
        line(3, time=2.5, kind="upload", client="c1", number=1, set_aside={"c1/1": "too far"}),
        line(4, time=3.0, kind="leave", client="c1"),
    ]
    (folder / "journal.jsonl").write_bytes(b"".join(events))
    return folder


def test_a_run_is_told_in_the_words_of_the_page(tmp_path) -> None:
    run = FollowedRun(run_folder(tmp_path / "a"), "run0")
    run.read()
    told = run.chronicle.facts()
    assert told["about"] == {
        "key": "run0",
        "name": "toy, seed 0",
        "algorithm": "cdfl",
        "clock": "virtual",
        "live": True,
    }
    assert told["totals"] == {"uploads": 2, "version": 2, "time": 3, "set_aside": 1, "present": 1, "members": 2}
    assert told["series"]["accuracy/k0"]["points"] == [[2.0, 0.9, 1]]
    assert told["series"]["loss/k0"]["points"] == [[1.0, 0.5, 1]]
    assert told["staleness"] == [("0", 1), ("1", 1)]
    rows = {row["client"]: row for row in told["members"]}
    assert [(rows[name]["before"], rows[name]["after"], rows[name]["present"]) for name in ("c0", "c1")] == [
        (0.5, 0.75, True),
        (0.5, 0.25, False),
    ]
    assert [notice["text"] for notice in told["notices"] if notice["kind"] == "aside"] == ["upload not folded: too far"]


def test_a_run_that_grows_is_read_on(tmp_path) -> None:
    run = FollowedRun(run_folder(tmp_path / "a"), "run0")
    run.read()
    mark = run.chronicle.mark
    with open(run.folder / "metrics.csv", "a", newline="") as file:
        file.write("3,4.0,c0,1,3,0,0.75,0.8,,,\r\n4,5.0,c1,1,4")  # the second is still being written
    run.read()
    told = run.chronicle.facts(mark)
    assert [row["client"] for row in told["members"]] == ["c0"]
    assert told["members"][0]["answered"] == 2
    assert run.chronicle.history("c0")[-1]["after"] == 0.8


def test_a_run_that_went_back_is_read_again(tmp_path) -> None:
    run = FollowedRun(run_folder(tmp_path / "a"), "run0")
    run.read()
    (run.folder / "metrics.csv").write_text(HEAD + "1,1.0,c0,0,1,0,0.5,0.6,,,\r\n", newline="")
    run.read()
    assert run.turns == 2
    assert [row["client"] for row in run.chronicle.facts()["members"]] == ["c0"]


def test_exported_shares_are_the_path_of_a_client(tmp_path) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / "shares.csv").write_text(
        "upload,time,client,cluster,true,estimated\r\n1,1.0,c0,k0,1.0,0.75\r\n1,1.0,c0,k1,0.0,0.25\r\n", newline=""
    )
    run = FollowedRun(folder, "run0")
    run.read()
    assert run.chronicle.history("c0")[0]["mixture"] == {"k0": 0.75, "k1": 0.25}
    assert run.chronicle.history("c1")[0].get("mixture") is None


def test_a_real_run_is_followed_to_its_end(tmp_path) -> None:
    simulate("digits-2", changes=["world.clients=4", "start.trunk_epochs=0"], uploads=6, out=tmp_path / "run")
    (run,) = followed([tmp_path])
    run.read()
    told = run.chronicle.facts()
    assert (told["about"]["live"], told["about"]["name"], told["totals"]["uploads"]) == (False, "run", 6)
    assert sum(count for _, count in told["staleness"]) == 6
    assert any(row["mixture"] for row in told["members"])
    assert {"accuracy/k0", "accuracy/k1"} <= set(told["series"])


def test_runs_have_names_that_tell_them_apart(tmp_path) -> None:
    for name in ("a/seed-0", "b/seed-0", "b/seed-1"):
        run_folder(tmp_path / name)
    assert [run.name for run in followed([tmp_path])] == ["a/seed-0", "b/seed-0", "b/seed-1"]
    assert [run.name for run in followed([tmp_path / "b"])] == ["seed-0", "seed-1"]


def test_what_is_no_run_is_refused_in_plain_words(tmp_path, monkeypatch) -> None:
    with pytest.raises(NoRun, match="No such folder"):
        followed([tmp_path / "missing"])
    with pytest.raises(NoRun, match="No run in the folder"):
        followed([tmp_path])
    run_folder(tmp_path / "a")
    run_folder(tmp_path / "b")
    monkeypatch.setattr(following, "MOST", 1)
    with pytest.raises(SettingError, match="2 runs are too many for one page"):
        followed([tmp_path])


def test_a_tail_of_a_missing_file_is_empty(tmp_path) -> None:
    assert list(Tail(tmp_path / "none").lines()) == []


@pytest.mark.heavy
def test_the_command_prints_an_address_that_works_and_ends_when_told(tmp_path) -> None:
    run_folder(tmp_path / "a")
    source, out, log = launcher(), tmp_path / "out", tmp_path / "log"
    out.touch()
    pid = source.start(["dashboard", "a", "--no-open"], tmp_path, log, out)
    until(lambda: source.poll(pid) is not None or "Ctrl-C ends it" in out.read_text())
    address = re.search(r"http://127\.0\.0\.1:\d+/\S+/", out.read_text().replace("\n", ""))
    with urllib.request.urlopen(address[0]) as reply:
        assert b'content="runs"' in reply.read()
    os.kill(pid, signal.SIGTERM)
    assert source.wait(pid) == 0, log.read_text()


# the page of runs


@pytest.fixture
def page(tmp_path):
    made = RunsPage([FollowedRun(run_folder(tmp_path / "a"), "run0")], key="the-key")
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join()


def get(page: RunsPage, path: str, host: str | None = None) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", path, headers={"host": host} if host else {})
    reply = connection.getresponse()
    found = reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()}
    connection.close()
    return found


def test_the_page_is_below_its_key_and_nowhere_else(page) -> None:
    assert page.url == f"http://127.0.0.1:{page.port}/the-key/"
    status, body, headers = get(page, "/the-key/")
    assert (status, b'content="runs"' in body) == (200, True)
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert get(page, "/the-key/page/app.js")[0] == 200
    for path in ("/", "/page/app.js", "/wrong/", "/the-key", "/the-key/../a/config.json", "/the-key/page/nothing"):
        assert get(page, path)[0] in (404,) or path == "/the-key", path


def test_a_name_of_another_host_is_refused(page) -> None:
    assert get(page, "/the-key/", "evil.example")[0] == 403
    assert get(page, "/the-key/", f"evil.example:{page.port}")[0] == 403
    assert get(page, "/the-key/", f"localhost:{page.port}")[0] == 200


def test_the_history_of_a_client(page) -> None:
    page.read()
    told = json.loads(get(page, "/the-key/page/clients/c0?source=run0")[1])
    assert [(one["number"], one["after"]) for one in told] == [(1, 0.75)]
    assert json.loads(get(page, "/the-key/page/clients/c0?source=other")[1]) == []


def test_the_stream_tells_all_and_then_nothing_twice(page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/the-key/page/events")
    reply = connection.getresponse()
    assert reply.getheader("content-type") == "text/event-stream"
    lines = [reply.readline() for _ in range(4)]
    assert lines[0] == b"retry: 2000\n"
    assert json.loads(lines[3].removeprefix(b"data: "))["whole"] is True
    connection.close()
    known: dict = {}
    assert [told["whole"] for told in page.news(known)] == [True]
    assert page.news(known) == []


def test_a_port_that_is_taken_is_refused_in_plain_words(page) -> None:
    with pytest.raises(UserError, match="Cannot listen on"):
        RunsPage([], page.port)


def add(name: str, data: bytes):
    """Something that appends to a file of a run."""

    def append(folder: Path) -> None:
        with open(folder / name, "ab") as file:
            file.write(data)

    return append


def journal(text: bytes):
    return add("journal.jsonl", b"%08x %s\n" % (zlib.crc32(text), text))


DAMAGE = {
    "time": add("metrics.csv", b"3,nan,c0,0,1,0,0.5,0.75,,,\r\n"),
    "far": add("metrics.csv", b"3,1e300,c0,0,1,0,0.5,0.75,,,\r\n"),
    "short": add("metrics.csv", b"3\r\n"),
    "bytes": add("metrics.csv", b"3,1,\xff,0,1,0,0.5,0.75,,,\r\n"),
    "field": add("metrics.csv", b"3,1," + b"x" * 200_000 + b",0,1,0,0.5,0.75,,,\r\n"),
    "staleness": add("metrics.csv", b"3,1,c0,0,1," + b"9" * 4000 + b",0.5,0.75,,,\r\n"),
    "accuracy": add("clusters.csv", b"3,1,k0,\r\n"),
    "share": add("shares.csv", b"upload,client,cluster,estimated\r\nx,c0,k0,0.5\r\n"),
    "list": journal(b"[]"),
    "no time": journal(b'{"kind":"join"}'),
    "never": journal(b'{"time":NaN,"kind":"join","client":"x"}'),
    "deep": journal(b'{"time":1,"kind":"x","y":' + b"[" * 100_000),
    "loss": journal(b'{"time":1,"kind":"upload","appraisals":{"k0":"x"}}'),
    "refusals": add("summary.json", b'{"refusals":{"a":NaN}}'),
    "summary": add("summary.json", b"[]"),
    "snapshot": add("snapshots/000.json", b"{"),
    "folder": lambda folder: (folder / "shares.csv").mkdir(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_left_out_and_told(tmp_path, what) -> None:
    folder = run_folder(tmp_path / "a")
    DAMAGE[what](folder)
    page = RunsPage(followed([folder]))
    (told,) = page.news({})
    page._server.server_close()
    assert len(framed(told)) < 3000
    assert [notice["text"] for notice in told["notices"] if notice["kind"] == "alarm"] == [
        "Some of its files cannot be read"
    ]
    assert [row["client"] for row in told["members"]] == ["c1", "c0"]  # what is sound is there


def test_a_folder_of_something_else_is_no_run(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"format": 1}')
    with pytest.raises(NoRun, match="is not of a run"):
        followed([tmp_path])


def test_a_large_file_is_read_in_blocks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(following, "BLOCK", 8)
    (tmp_path / "file").write_bytes(b"one\ntwo\nthree\n" + b"x" * 20 + b"\nfour\nfi")
    tail = Tail(tmp_path / "file")
    assert list(tail.lines())[:3] == [b"one", b"two", b"three"]
    with open(tmp_path / "file", "ab") as file:
        file.write(b"ve\n")
    assert list(tail.lines()) == [b"five"]


def asked(page: RunsPage, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", page.port), 10) as link:
        link.sendall(data)
        return link.recv(12)


def test_odd_requests_and_hang_ups_leave_the_terminal_alone(tmp_path, capfd) -> None:
    page = RunsPage(followed([run_folder(tmp_path / "a")]))
    serving = threading.Thread(target=page.serve)
    serving.start()
    own = f"host: 127.0.0.1:{page.port}\r\n\r\n".encode()
    assert asked(page, b"GET http://[ HTTP/1.1\r\n" + own) == b"HTTP/1.1 404"
    link = socket.create_connection(("127.0.0.1", page.port), 10)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset, not closed
    link.sendall(f"GET /{page.key}/page/app.js HTTP/1.1\r\n".encode() + own)
    link.close()
    until(lambda: page._server._free._value == live_page.CONNECTIONS)
    page.close()
    serving.join()
    assert capfd.readouterr().err == ""


def test_connections_are_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(live_page, "CONNECTIONS", 1)
    page = RunsPage(followed([run_folder(tmp_path / "a")]))
    serving = threading.Thread(target=page.serve)
    serving.start()
    with socket.create_connection(("127.0.0.1", page.port), 10):
        until(lambda: not page._server._free._value)
        with socket.create_connection(("127.0.0.1", page.port), 10) as other:
            assert other.recv(1) == b""
    until(lambda: page._server._free._value)
    assert asked(page, f"GET /{page.key}/ HTTP/1.1\r\nhost: 127.0.0.1:{page.port}\r\n\r\n".encode()) == b"HTTP/1.1 200"
    page.close()
    serving.join()

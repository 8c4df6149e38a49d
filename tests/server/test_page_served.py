"""The live page of a server process: a stream over a real connection, bounded and never in the way of the end."""

import http.client
import json
import signal
import socket
import time

import pytest
from promises.federation import Process, until

pytestmark = pytest.mark.heavy


def cookie(server: Process) -> str:
    seen: dict[str, str] = {}
    body = json.dumps({"token": server.token("admin")}).encode()
    own = {"origin": f"http://127.0.0.1:{server.port}"}
    assert server.request("POST", "/page/login", body=body, headers=own, seen=seen)[0] == 200
    return seen["set-cookie"].partition(";")[0]


def stream(server: Process, key: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/page/events", headers={"cookie": key})
    return connection, connection.getresponse()


def facts(reply: http.client.HTTPResponse) -> dict:
    """The next message."""
    while not (line := reply.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    return json.loads(line.removeprefix(b"data: "))


def test_a_stream_tells_uploads_and_ends_soon_when_the_server_is_told_to_stop(tmp_path) -> None:
    server = Process(tmp_path)
    task = server.join("c0")
    connection, reply = stream(server, cookie(server))
    assert (reply.status, reply.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    first = facts(reply)
    assert (first["whole"], [row["answered"] for row in first["members"]]) == (True, [0])
    server.upload("c0", task)
    while not (told := facts(reply)).get("members"):
        pass
    assert [(row["client"], row["answered"]) for row in told["members"]] == [("c0", 1)]
    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 4  # a stream does not use up the time that requests have to finish
    connection.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_one_watcher_too_many_is_refused_and_makes_room_when_another_goes(tmp_path) -> None:
    server = Process(tmp_path, "--set", "watchers=1")
    key = cookie(server)
    connection, reply = stream(server, key)
    facts(reply)
    assert server.request("GET", "/page/events", headers={"cookie": key})[0] == 429
    connection.sock.close() if connection.sock else reply.close()
    reply.close()
    connection.close()
    end = time.monotonic() + 20
    while True:
        other, reply = stream(server, key)
        if reply.status == 200:
            break
        assert time.monotonic() < end
        reply.read()
        other.close()
    reply.close()
    other.close()
    assert server.stop(signal.SIGTERM) == 0


def test_slow_logins_keep_nobody_out_and_do_not_hold_up_the_end(tmp_path) -> None:
    server = Process(tmp_path, "--set", "grace=60")
    own = f"host: 127.0.0.1:{server.port}\r\norigin: http://127.0.0.1:{server.port}\r\n"
    slow = f"POST /page/login HTTP/1.1\r\n{own}content-length: 100\r\n\r\n{{".encode()
    links = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(300)]
    for link in links:
        link.sendall(slow)  # more than one address may have under way
    ask = lambda: server.request("GET", "/v1/federation", server.token("enrol"))[0] == 200  # noqa: E731
    until(ask, 20)  # all but a few were refused by then
    server.upload("c0", server.join("c0"))
    assert cookie(server)
    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10
    for link in links:
        link.close()


def test_many_who_follow_at_once_are_as_few_as_allowed(tmp_path) -> None:
    server = Process(tmp_path, "--set", "watchers=2")
    ask = f"GET /page/events HTTP/1.1\r\nhost: x\r\ncookie: {cookie(server)}\r\n\r\n".encode()
    links = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(20)]
    for link in links:
        link.sendall(ask)
    told = [link.recv(12)[-3:] for link in links]
    assert sorted(told) == [b"200"] * 2 + [b"429"] * 18
    assert server.stop(signal.SIGTERM) == 0
    for link in links:
        link.close()

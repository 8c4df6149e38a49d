"""P15: ids and numbers never become paths: no file is touched but those of the store, under names of its own."""

import http.client
import json
import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from launching import SERVING, Launcher
from promises.checks import untyped
from promises.federation import SECRET, Process, draws
from promises.listening import PRELUDE, heard

pytestmark = pytest.mark.heavy

PIECES = [
    "..", ".", "/", "\\", "%2e%2e", "%2f", "%5c", "%00", "\x00", "~", "etc", "passwd", "store", "blobs", "mark", "lock",
    "tokens.json", "artesian.db", "C:", "file://", "\u2215", "\uff0e\uff0e", "..;", "....//", "$(id)", "`id`", "|", "*",
    "CON", "\n", " ", "identity", "proc", "self", "a" * 150, "0" * 64, ".tmp", "-rf", "'; DROP TABLE events; --",
    "{client}", "%252e%252e%252f",
]  # fmt: skip
HEX = r"[0-9a-f]{64}(\.safetensors)?(\.tmp)?"
OWN = re.compile(
    rf"artesian\.db(-wal|-shm|-journal)?|mark|lock|(tokens|keys)\.(json|lock)(\.tmp)?|(blobs|shelf|parts)(/{HEX})?"
)


def odd_id(rng) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 5)))


def addressed(text: str, rng) -> str:
    """In an address: encoded, encoded twice, or as it is where HTTP allows that."""
    once = quote(text, safe="")
    plain = "".join(c if 33 <= ord(c) < 127 and c not in "?#" else quote(c, safe="") for c in text)
    return rng.choice([once, once, quote(once, safe=""), plain])


def strange(events: list[list], store: Path) -> list[str]:
    """Which of these events touch a file outside the store, or one of an unknown name in it."""
    wrong = []
    for event, *words in events:
        if event in ("sqlite3.connect", "socket.connect", "exec", "compile", "marshal.loads"):
            continue
        paths = [word for word in words if isinstance(word, str) and "/" in word]
        for path in [os.path.normpath(store.parent / path) for path in paths] or [str(words[:1])]:
            inside = Path(path).is_relative_to(store) and OWN.fullmatch(str(Path(path).relative_to(store)))
            wrong += [] if inside or Path(path) == store else [f"{event} {path}"]
    return wrong


def names(store: Path) -> list[str]:
    """Files of the store whose names are not of a known form."""
    found = (str(path.relative_to(store)) for path in store.rglob("*"))
    return [name for name in found if not OWN.fullmatch(name)]


def test_no_id_or_number_touches_a_file_of_its_name(tmp_path, promise, figure) -> None:
    wanted, rng = promise("paths"), draws("paths")
    (tmp_path / "server").mkdir()
    (tmp_path / "canary").write_text("untouched")
    store = tmp_path / "server" / "store"
    source = Launcher(SERVING + PRELUDE)
    try:
        audit = tmp_path / "audit"
        server = Process(tmp_path / "server", source=source, PROMISES_AUDIT=str(audit))
        server.upload("c0", server.join("c0"))
        server.request("GET", "/v1/nothing")
        server.request("GET", "/")  # FastAPI reads the source of a route when it is first called
        server.request("PUT", "/v1/clients/c0/uploads/2", SECRET, b"x")
        size = audit.stat().st_size
        statuses: dict[int, int] = {}
        for turn in range(wanted):
            status, body = asked(server, rng)
            statuses[status] = statuses.get(status, 0) + 1
            assert status in (200, 204) or untyped(status, body) == [], f"turn {turn}: {status} {body[:200]}"
        assert server.poll() is None
        assert strange(heard(audit, size), store) == []
        server.stop()
        assert names(store) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["audit", "canary", "server"]
        assert sorted(path.name for path in (tmp_path / "server").iterdir() if path.is_file()) == ["log", "served.py"]
        figure(", ".join(f"{count} x {status}" for status, count in sorted(statuses.items())))
    finally:
        source.close()


def asked(server: Process, rng) -> tuple[int, bytes]:
    """One request with something odd where an id or a number belongs."""
    text = odd_id(rng)
    odd = addressed(text, rng)
    joining = json.dumps({"samples": 5, "secret": SECRET}).encode()
    method, path, token, body = rng.choice(
        [
            ("PUT", f"/v1/clients/{odd}", server.token("enrol"), joining),
            ("PUT", f"/v1/clients/{odd}", server.token("enrol"), joining),
            ("GET", f"/v1/clients/{odd}/task", SECRET, None),
            ("DELETE", f"/v1/clients/{odd}", SECRET, None),
            ("HEAD", f"/v1/clients/{odd}/uploads/1", SECRET, None),
            ("PUT", f"/v1/clients/{odd}/uploads/1", SECRET, b"x" * 100),
            ("PUT", f"/v1/clients/c0/uploads/{odd}", SECRET, b"x" * 100),
            ("HEAD", f"/v1/clients/c0/uploads/{odd}", SECRET, None),
            ("GET", f"/{odd}", "", None),
            ("GET", f"/v1/clients/c0/task?wait={odd}", SECRET, None),
        ]
    )
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
        for name, value in {"authorization": f"Bearer {token}", "content-length": str(len(body or b""))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        told = reply.read()
        return (204 if method == "HEAD" and 400 <= reply.status < 500 else reply.status), told
    finally:
        connection.close()


def test_a_file_of_another_name_would_be_seen(tmp_path) -> None:
    store = tmp_path / "store"
    assert strange([["open", "/etc/passwd", "r"], ["os.rename", f"{store}/x", f"{store}/../y"]], store)
    assert not strange([["open", f"{store}/blobs/{'a' * 64}.safetensors.tmp", "w"]], store)
    (store / "blobs").mkdir(parents=True)
    (store / "blobs" / "c0").touch()
    assert names(store) == ["blobs/c0"]

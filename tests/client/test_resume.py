"""A broken upload goes on where the server's part ends; a busy server is given the time it asks for."""

import json
import time

import httpx
import numpy as np
import pytest
from homes import Home

from artesian.client import transport as transports
from artesian.client.session import Session
from artesian.client.transport import Transport, repr_digest
from artesian.core import Upload
from artesian.errors import BadFormat, Busy, Conflict, ServerFailed, Unreachable
from artesian.storage.codec import encode


class Parts(httpx.BaseTransport):
    """A server that keeps what it received of a broken upload, in front of the real one."""

    def __init__(self, wire: httpx.BaseTransport) -> None:
        self.wire = wire
        self.part, self.digest = b"", ""
        self.breaks: list[int] = []  # how many bytes of each of the next uploads arrive before the connection breaks
        self.seen: list[tuple[str, str | None, int]] = []
        self.heads = 200

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/uploads/" not in request.url.path:
            return self.wire.handle_request(request)
        body = request.read()
        self.seen.append((request.method, request.headers.get("content-range"), len(body)))
        return self.tell() if request.method == "HEAD" else self.take(request, body)

    def tell(self) -> httpx.Response:
        told = {"upload-offset": str(len(self.part))} | ({"repr-digest": self.digest} if self.part else {})
        return httpx.Response(self.heads, headers=told if self.heads == 200 else {})

    def take(self, request: httpx.Request, body: bytes) -> httpx.Response:
        span, digest = request.headers.get("content-range"), request.headers["repr-digest"]
        if span is None:
            self.part, self.digest = b"", digest
        else:
            start, end, total = (int(n) for n in span.removeprefix("bytes ").replace("/", "-").split("-"))
            assert (end, len(body)) == (total - 1, total - start)
            if start != len(self.part) or digest != self.digest:
                return refusal(409, "Conflict", "a continued upload begins where the server's part ends")
        if self.breaks:
            self.part += body[: self.breaks.pop(0)]
            raise httpx.WriteError("broken")
        whole, self.part = self.part + body, b""
        if repr_digest(whole) != digest:
            return refusal(400, "BadFormat", "a body has the digest it announces")
        headers = {"authorization": request.headers["authorization"]}
        return self.wire.handle_request(httpx.Request("PUT", request.url, headers=headers, content=whole))


def refusal(status: int, error: str, rule: str) -> httpx.Response:
    return httpx.Response(status, json={"error": error, "rule": rule, "got": "", "remedy": ""})


class Resumed(Home):
    """A home whose server keeps parts."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.parts = Parts(self.wire)

    def session(self, name: str = "c0", patience: float = 2.0) -> Session:
        transport = Transport("http://test", patience, transport=self.parts)
        return Session(transport, self.token, self.folder / name, name)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(transports, "SMALL", 16)
    made = Resumed(tmp_path)
    made.session().task(5)
    yield made
    made.close()


def test_a_broken_upload_goes_on_where_it_broke(home) -> None:
    home.parts.breaks = [100, 50]
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    total = home.parts.seen[0][2]
    last = total - 1
    assert home.parts.seen == [
        ("PUT", None, total),
        ("HEAD", None, 0),
        ("PUT", f"bytes 100-{last}/{total}", total - 100),
        ("HEAD", None, 0),
        ("PUT", f"bytes 150-{last}/{total}", total - 150),
    ]


def test_a_client_that_died_goes_on_where_it_broke(home) -> None:
    home.parts.breaks = [100] * 50
    with pytest.raises(Unreachable):
        home.session(patience=0).refresh(home.learner())
    home.parts.breaks, home.parts.seen = [], []
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    assert [(method, span is not None) for method, span, _ in home.parts.seen] == [("HEAD", False), ("PUT", True)]


def test_the_same_by_hand_asks_only_when_there_was_a_spool(home) -> None:
    session = home.session(patience=0)
    task = session.task()
    upload = Upload("c0", task.number, 5, {"blend": task.models["blend"]})
    home.parts.breaks = [70]
    with pytest.raises(Unreachable):
        session.upload(upload)
    session.upload(upload)
    assert [method for method, _, _ in home.parts.seen] == ["PUT", "HEAD", "PUT"]
    assert home.parts.seen[-1][1].startswith("bytes 70-")


@pytest.mark.parametrize("status", [404, 405, 500, 302])
def test_a_server_that_keeps_no_parts_gets_the_whole(home, status) -> None:
    home.parts.breaks, home.parts.heads = [100], status
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    assert [span for _, span, _ in home.parts.seen] == [None, None, None]


def test_small_bodies_are_sent_anew(home, monkeypatch) -> None:
    monkeypatch.setattr(transports, "SMALL", 1 << 16)
    home.parts.breaks = [100]
    home.session().refresh(home.learner())
    assert [method for method, _, _ in home.parts.seen] == ["PUT", "PUT"]


@pytest.mark.parametrize(
    "told",
    [
        {"upload-offset": "many"},
        {"upload-offset": "-3"},
        {"upload-offset": "9" * 30},
        {"upload-offset": "100000"},
        {"upload-offset": "40", "repr-digest": repr_digest(b"another body")},
        {"upload-offset": "40"},
        {},
    ],
    ids=str,
)
def test_nonsense_about_a_part_means_the_whole(home, monkeypatch, told) -> None:
    home.parts.breaks = [100]
    monkeypatch.setattr(home.parts, "tell", lambda: httpx.Response(200, headers=told))
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    assert home.parts.seen[-1][1] is None


@pytest.mark.parametrize("lie", ["another length", "spoilt"])
def test_a_part_that_does_not_fit_is_sent_anew(home, monkeypatch, lie) -> None:
    tell = home.parts.tell

    def lying() -> httpx.Response:
        if lie == "spoilt":
            home.parts.part = b"?" + home.parts.part[1:]
            return tell()
        return httpx.Response(200, headers={"upload-offset": "30", "repr-digest": home.parts.digest})

    monkeypatch.setattr(home.parts, "tell", lying)
    home.parts.breaks = [100]
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    assert [span is not None for _, span, _ in home.parts.seen] == [False, False, True, False]


def test_another_body_under_the_same_number_is_still_a_conflict(home) -> None:
    session = home.session()
    task = session.task()
    upload = Upload("c0", task.number, 5, {"blend": task.models["blend"]})
    session.upload(upload)
    other = Upload("c0", task.number, 6, {"blend": task.models["blend"]})
    with pytest.raises(Conflict, match="another body"):
        session.upload(other)
    home.parts.breaks = [100]
    with pytest.raises(Conflict, match="another body"):  # also where it was continued
        session.upload(other)
    assert not (home.folder / "c0" / "spool").exists()
    assert home.state.version == 1


def test_a_spool_is_the_same_bytes_whenever_it_is_sent(home) -> None:
    session = home.session(patience=0)
    home.parts.breaks = [100]
    with pytest.raises(Unreachable):
        session.refresh(home.learner())
    spool = home.session()._spool()
    assert repr_digest(encode("upload", spool.upload)) == home.parts.digest


# waiting


def answering(*answers: httpx.Response, patience: float = 5.0, **options) -> tuple[Transport, list[float]]:
    """A transport that is answered like this, one by one, then always like the last; and when it asked."""
    asked: list[float] = []

    def answer(_: httpx.Request) -> httpx.Response:
        asked.append(time.monotonic())
        return answers[min(len(asked), len(answers)) - 1]

    return Transport("http://test", patience, transport=httpx.MockTransport(answer)), asked


def busy(after: str | None, status: int = 429) -> httpx.Response:
    headers = {} if after is None else {"retry-after": after}
    return httpx.Response(status, headers=headers, content=json.dumps(BUSY).encode() if status == 429 else b"<html>")


BUSY = {"error": "Busy", "rule": "bodies under way fit into memory", "got": "9 bytes already", "remedy": "later"}


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_given_the_time_it_asks_for(status) -> None:
    transport, asked = answering(busy("1", status), httpx.Response(204))
    assert transport.send("GET", "/", "x").status_code == 204
    assert asked[1] - asked[0] >= 1.0


@pytest.mark.parametrize(("status", "kind"), [(429, Busy), (503, ServerFailed)])
def test_who_is_told_to_wait_longer_than_its_patience_gives_up_at_once(status, kind) -> None:
    transport, asked = answering(busy("3600", status))
    with pytest.raises(kind) as told:
        transport.send("GET", "/", "x")
    assert told.value.seconds == 3600
    assert len(asked) == 1


@pytest.mark.parametrize("after", [None, "", "soon", "-5", "1e9", "0", "Wed, 21 Oct 2015 07:28:00 GMT", "9" * 400])
def test_garbage_about_waiting_is_not_heeded(after) -> None:
    transport, asked = answering(busy(after), busy(after), httpx.Response(204), patience=1.0)
    assert transport.send("GET", "/", "x").status_code == 204
    assert len(asked) == 3


def test_a_storm_of_refusals_ends_with_the_patience() -> None:
    transport, asked = answering(busy(None), patience=0.3)
    with pytest.raises(Busy, match="fit into memory: got 9 bytes already"):
        transport.send("GET", "/", "x")
    assert 2 <= len(asked) < 100


@pytest.mark.parametrize("status", [408, 429])
def test_a_proxy_that_answers_in_its_own_words_is_understood(status) -> None:
    transport, asked = answering(httpx.Response(status, content=b"<html>"), httpx.Response(204), patience=1.0)
    assert transport.send("GET", "/", "x").status_code == 204
    assert len(asked) == 2


@pytest.mark.parametrize("told", [b"<html>", b"[]", b'{"error": "nearest"}', b'{"error": "ArtesianError"}', b"null"])
def test_a_refusal_of_no_server_of_ours(told) -> None:
    transport, _ = answering(httpx.Response(403, content=told))
    with pytest.raises(BadFormat, match="Artesian server"):
        transport.send("GET", "/", "x")


def test_a_redirect_is_no_answer() -> None:
    transport, _ = answering(httpx.Response(302, headers={"location": "http://elsewhere/"}))
    with pytest.raises(BadFormat, match="Status 302"):
        transport.send("GET", "/", "x")


def test_a_model_is_never_taken_from_a_half_answer(home) -> None:
    session = home.session()
    held = session.draw()
    home.parts.breaks = [10, 10, 10]
    session.refresh(home.learner())
    assert not np.array_equal(session.draw(), held)
    assert home.state.version == 1

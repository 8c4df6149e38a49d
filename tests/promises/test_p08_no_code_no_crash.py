"""P8: whatever the bytes, no code of theirs is run, the server lives, and the answer is a typed refusal."""

import http.client
import re
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from launching import SERVING, Launcher
from promises.checks import untyped
from promises.federation import MODEL, SECRET, Process, answer, draws, restored
from promises.listening import PRELUDE, heard
from promises.mutations import CORPUS, empty_tensors, mutated

import artesian
from artesian.core import Upload
from artesian.errors import Refused
from artesian.server.messages import decode_task
from artesian.storage.codec import decode, digest, encode, to_tree

GROWTH = 64  # MB a server may grow by, however many bad bodies it is sent
CODE = {"pickle.find_class", "marshal.loads", "exec", "compile", "os.system", "os.exec", "os.posix_spawn",
        "subprocess.Popen", "ctypes.dlopen"}  # fmt: skip


class Journal:
    """The number of events a server has in its store, and the digest that sums them up, read beside it."""

    def __init__(self, folder: Path) -> None:
        self.view = sqlite3.connect(f"file:{folder / 'artesian.db'}?mode=ro", uri=True)

    def __call__(self) -> tuple[int, str] | None:
        return self.view.execute("SELECT number, chain FROM events ORDER BY number DESC LIMIT 1").fetchone()


class Connection:
    """One connection of a client, opened again when the server closes it."""

    def __init__(self, server: Process) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

    def put(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.http.putrequest("PUT", path)
        self.http.putheader("authorization", f"Bearer {SECRET}")
        self.http.putheader("content-length", str(len(body)))
        self.http.endheaders()
        with suppress(BrokenPipeError, ConnectionResetError):  # it was refused before its end
            self.http.send(body)
        reply = self.http.getresponse()
        told = reply.read()
        if reply.will_close:
            self.http.close()
        return reply.status, told


@pytest.mark.heavy
def test_mutated_bodies_over_http_are_refused_by_type_and_change_nothing(tmp_path, promise, figure) -> None:
    wanted, rng = promise("mutations-http"), draws("mutations-http")
    source = Launcher(SERVING + PRELUDE)
    try:
        server = Process(tmp_path, "--set", "keep_uploads=true", source=source, PROMISES_AUDIT=str(tmp_path / "audit"))
        task = server.upload("c0", server.join("c0"))
        journal, link = Journal(tmp_path / "store"), Connection(server)
        path = "/v1/clients/c0/uploads/2"
        for body in CORPUS:  # a warm-up too: what is imported late is imported now
            status, told = link.put(path, body)
            assert untyped(status, told) == []
        began, size = server.resident(), (tmp_path / "audit").stat().st_size
        taken = 0
        for turn in range(wanted):
            path, good = f"/v1/clients/c0/uploads/{decode_task(task).number}", answer("c0", task)
            before, body = journal(), mutated(good, rng)
            status, told = link.put(path, body)
            if status == 200:
                task, taken = told, taken + 1
                assert journal()[0] == before[0] + 1, f"turn {turn}: one upload is one event"
            else:
                assert untyped(status, told) == [], f"turn {turn}: {body[:300]!r}"
                assert journal() == before, f"turn {turn}: a refusal wrote an event"
        status, told = link.put(path, empty_tensors())
        assert (status, untyped(status, told)) == (413, [])
        assert server.poll() is None, "the server died"
        grown = server.resident() - began
        assert grown < GROWTH, f"{grown:.0f} MB more after {wanted} bodies"
        ran = [event for event in heard(tmp_path / "audit", size) if event[0] in CODE]
        assert ran == [], "code was loaded while bodies were read"
        assert not [event for event in heard(tmp_path / "audit") if event[0] == "pickle.find_class"]
        journal.view.close()
        link.http.close()
        assert server.stop(signal.SIGTERM) == 0
        restored(tmp_path / "store")
        assert "Traceback" not in (tmp_path / "log").read_text()
        figure(f"{taken} were sound and taken; {grown:+.1f} MB; 0 loads of code")
    finally:
        source.close()


@pytest.mark.heavy
def test_the_listener_hears_a_pickle(tmp_path) -> None:
    """The count of 0 means something: a server that does unpickle is heard."""
    doctored = (
        PRELUDE
        + """
import artesian.server.routes as routes, pickle
def read_upload(body, *_):
    try:
        pickle.loads(body)
    except BaseException:
        raise routes.BadFormat("What happened", "What to do")
routes.read_upload = read_upload
"""
    )
    source = Launcher(SERVING + doctored)
    try:
        server = Process(tmp_path, source=source, PROMISES_AUDIT=str(tmp_path / "audit"))
        server.join("c0")
        for body in CORPUS[:3]:
            server.request("PUT", "/v1/clients/c0/uploads/1", SECRET, body)
        server.stop()
        assert [event for event in heard(tmp_path / "audit") if event[0] == "pickle.find_class"]
    finally:
        source.close()


def test_mutated_bodies_in_process_decode_or_are_refused(promise) -> None:
    wanted, rng = promise("mutations-decode"), draws("mutations-decode")
    good = encode("upload", Upload("c0", 1, 5, {"blend": MODEL.start(3)}, metrics={"loss": 0.5}))
    for turn in range(wanted):
        body = mutated(good, rng)
        try:
            upload = decode("upload", body, Upload, most=2)
        except Refused:
            continue
        assert len(digest(to_tree(upload))) == 64, f"turn {turn}"


CALLS = re.compile(
    r"torch\.load\(|yaml\.(?:unsafe_|full_)?load\(|allow_pickle\s*=\s*True|(?<![\w.])(?:eval|exec|compile)\("
)


def test_the_source_never_calls_what_runs_what_it_reads() -> None:
    """That nothing imports pickle is in tests/test_levels.py."""
    for path in Path(artesian.__file__).parent.rglob("*.py"):
        assert CALLS.findall(path.read_text()) == [], path
    for line in ("torch.load(x)", "np.load(x, allow_pickle=True)", "eval(x)", "yaml.load(x)"):
        assert CALLS.search(line), line

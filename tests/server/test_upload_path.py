"""An upload's way from bytes to reply: its numbers are scanned once, and its clusters are split once."""

import importlib
import re
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from promises.federation import MODEL, SECRET, Server, restored

from artesian.algorithms import FedAsync
from artesian.core import Upload
from artesian.engine import folding, transition
from artesian.params import seal
from artesian.server.messages import decode_task
from artesian.storage.codec import encode

SIGN = 7.25  # a number that only the upload holds


@pytest.fixture
def server(tmp_path):
    served = Server(tmp_path / "store", FedAsync())
    yield served
    served.close()


def an_upload() -> bytes:
    params = np.array(MODEL.start(0))
    params[: MODEL.layout.floats] = SIGN
    return encode("upload", Upload("c0", 1, 5, {"k0": seal(params)}))


def counted(monkeypatch) -> list[int]:
    """How many of the upload's numbers each scan for NaN, Inf or magnitude sees, whoever scans."""
    seen: list[int] = []

    def counting(scan):
        def scanned(array, *args, **options):
            seen.append(int(np.sum(np.asarray(array) == SIGN)))
            return scan(array, *args, **options)

        return scanned

    for name in ("abs", "isfinite", "isnan", "isinf"):
        monkeypatch.setattr(np, name, counting(getattr(np, name)))
    return seen


def test_every_number_of_an_upload_is_scanned_once(server, monkeypatch) -> None:
    server.join()
    seen = counted(monkeypatch)
    reply = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=an_upload())
    monkeypatch.undo()
    assert (reply.status_code, decode_task(reply.content).number) == (200, 2)
    assert sum(seen) == MODEL.layout.floats


def test_a_replayed_upload_is_not_scanned_again(tmp_path, monkeypatch) -> None:
    """It was checked before it was written, and its digest says that it is the same."""
    server = Server(tmp_path / "store", FedAsync(), snapshot_every=100)
    server.join()
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=an_upload()).status_code == 200
    before = server.digest()
    server.store.close()  # as a crash would: no snapshot after the upload
    seen = counted(monkeypatch)
    assert restored(tmp_path / "store", FedAsync())[0] == before
    monkeypatch.undo()
    assert sum(seen) == 0


def test_the_clusters_are_split_once_per_fold(server, monkeypatch) -> None:
    server.join()
    calls: list[int] = []
    split = transition.split
    for module in (folding, transition):
        monkeypatch.setattr(module, "split", lambda *args: calls.append(1) or split(*args), raising=False)
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=an_upload()).status_code == 200
    assert len(calls) == 1


def test_every_hop_in_the_docs_is_in_the_file_it_links_to() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
    hops = re.findall(r"^\d+\. \[`([\w.]+)`\]\((\.\./\.\./src/(artesian/[\w/]+)\.py)\)", page.read_text(), re.M)
    assert 10 <= len(hops) <= 12
    for name, link, module in hops:
        assert (page.parent / link).exists(), link
        found = reduce(getattr, name.split("."), importlib.import_module(module.replace("/", ".")))
        assert found.__module__ == module.replace("/", "."), name

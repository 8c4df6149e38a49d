"""A client keeps the server's signed word about its last upload, and checks it with keys it fetched before."""

import pytest
from homes import MODEL, WORLD
from toyserver import Served

from artesian import connect, verify_acknowledgement
from artesian.errors import NotAuthentic

pytest.importorskip("cryptography")


@pytest.fixture
def url_and_token(tmp_path):
    server = Served(tmp_path / "server", signs=True)
    yield server.url, server.token
    server.close()


def test_a_client_keeps_and_checks_the_last_acknowledgement(url_and_token, tmp_path) -> None:
    url, token = url_and_token
    visit = WORLD.visit(0, "c0", 1)
    with connect(url, token=token, home=tmp_path / "home", client="c0") as client:
        assert client.acknowledgement is None
        client.refresh(MODEL.learner(visit.train.x, visit.train.y))
        first, keys = client.acknowledgement, client.keys()
        client.refresh(MODEL.learner(visit.train.x, visit.train.y))
        second = client.acknowledgement
    found = [verify_acknowledgement(text, keys) for text in (first, second)]
    assert [(one.client, one.number, one.event) for one in found] == [("c0", 1, 2), ("c0", 2, 3)]
    assert (tmp_path / "home" / "acknowledgement").read_text() == second
    with pytest.raises(NotAuthentic):
        verify_acknowledgement(second[:-4] + "AAAA", keys)

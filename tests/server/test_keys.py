"""Signed acknowledgements: which event an upload became, the same for a retry; keys, and how they are replaced."""

import json
import sys
from dataclasses import replace

import pytest
from promises.federation import SECRET, Server, trained

from artesian.cli.stores import verify
from artesian.errors import MissingExtra, NotAuthentic, StorageError
from artesian.server.app import create_app
from artesian.server.keys import SigningKeys
from artesian.server.serve import signing_keys
from artesian.server.verifying import acknowledged
from artesian.storage.acknowledgement import HEADER, Acknowledgement, key_id, verify_acknowledgement
from artesian.storage.codec import encode
from artesian.storage.copying import copy_store

pytest.importorskip("cryptography")
PATH = "/v1/clients/c0/uploads/1"


class Signing(Server):
    """A server that signs."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.keys = signing_keys(self.store)
        self.app = create_app(self.service, self.auth, None, self.keys)

    def published(self) -> dict:
        return self.ask("GET", "/v1/keys", self.enrol).json()


@pytest.fixture
def server(tmp_path):
    made = Signing(tmp_path / "store")
    yield made
    made.close()


def test_an_upload_is_acknowledged_with_its_event_and_a_retry_the_same_way(tmp_path) -> None:
    server = Signing(tmp_path / "store")
    body = encode("upload", trained("c0", server.join().content))
    told = server.ask("PUT", PATH, SECRET, content=body)
    found = verify_acknowledgement(told.headers[HEADER], server.published(), body)
    assert (found.federation, found.client, found.number) == ("toy", "c0", 1)
    assert (found.event, found.chain) == (server.store.count, server.store.chain) == (2, server.store.chain)
    assert server.ask("PUT", PATH, SECRET, content=body).headers[HEADER] == told.headers[HEADER]
    server.store.close()  # as after a kill
    again = Signing(tmp_path / "store")
    text = again.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    assert verify_acknowledgement(text, again.published(), body) == found  # its time is that of the event
    assert text == told.headers[HEADER]
    again.close()


def test_an_acknowledgement_is_checked_against_the_journal(tmp_path, capsys) -> None:
    server = Signing(tmp_path / "store")
    body = encode("upload", trained("c0", server.join().content))
    copy_store(tmp_path / "store", tmp_path / "before")
    text = server.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    (tmp_path / "text").write_text(f"{text}\n")
    assert acknowledged(tmp_path / "store", text).event == 2
    with pytest.raises(NotAuthentic, match="does not hold event 2 of the acknowledgement: upload 1 of c0"):
        acknowledged(tmp_path / "before", text)
    said = replace(acknowledged(tmp_path / "store", text), chain="0" * 64)  # the server's own key, another journal
    with pytest.raises(NotAuthentic, match="does not hold event 2"):
        acknowledged(tmp_path / "store", server.keys.sign(said))
    with pytest.raises(SystemExit, match="0"):
        verify(tmp_path / "store", acknowledgement=tmp_path / "text")
    assert "acknowledged: upload 1 of c0 is event 2, taken at 20" in capsys.readouterr().out
    server.close()


def test_a_refused_upload_is_not_acknowledged(server) -> None:
    server.join()
    told = server.ask("PUT", PATH, SECRET, content=b"nonsense")
    assert told.status_code == 400 and HEADER not in told.headers


def test_what_an_older_key_signed_can_be_checked_after_a_rotation(server) -> None:
    body = encode("upload", trained("c0", server.join().content))
    before = server.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    old = server.published()
    SigningKeys(server.keys.path).rotate("2026-01-01T00:00:00.000Z")  # by a command, while the server runs
    after = server.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    keys = server.published()
    assert [key.get("retired") for key in keys["keys"]] == [None, "2026-01-01T00:00:00.000Z"]
    assert verify_acknowledgement(before, keys) == verify_acknowledgement(after, keys)
    with pytest.raises(NotAuthentic, match="None of these keys"):
        verify_acknowledgement(after, old)
    assert "private" not in json.dumps(keys)
    kept = json.loads(server.keys.path.read_text())["keys"]
    assert [bool(key["private"]) for key in kept] == [False, True]
    assert server.keys.path.stat().st_mode & 0o077 == 0


def test_a_rotation_after_the_file_was_lost_leaves_a_running_server_its_old_keys(server, caplog) -> None:
    body = encode("upload", trained("c0", server.join().content))
    before = server.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    server.keys.path.unlink()
    SigningKeys(server.keys.path).rotate("2026-01-01T00:00:00.000Z")
    after = server.ask("PUT", PATH, SECRET, content=body).headers[HEADER]
    keys = server.published()
    assert [key.get("retired") for key in keys["keys"]] == [None, "2026-01-01T00:00:00.000Z"]
    assert verify_acknowledgement(before, keys) == verify_acknowledgement(after, keys)
    server.published()
    (told,) = [record.fields for record in caplog.records if record.name == "artesian.keys"]
    assert "has lost 1 of the keys read before; restore it, and rotate again" in told["problem"]


def test_keys_that_cannot_be_read_stop_the_start(server) -> None:
    told = json.loads(server.keys.path.read_text())
    other = SigningKeys(server.keys.path.with_name("other.json")).rotate("now")
    told["keys"][0]["public"] = other.public
    for text in ("{", json.dumps(told), json.dumps({"format": 1, "keys": []})):
        server.keys.path.write_text(text)
        with pytest.raises(StorageError, match="Cannot read the signing keys"):
            signing_keys(server.store)


def test_without_its_package_a_check_says_what_to_install(tmp_path, monkeypatch) -> None:
    keys = SigningKeys(tmp_path / "keys.json")
    keys.rotate("now")
    text, published = keys.sign(Acknowledgement("f", "c0", 1, "0" * 64, 2, "1" * 64, "now")), keys.published()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingExtra, match=r"pip install 'artesian\[signing\]'"):
        verify_acknowledgement(text, published)


def test_another_upload_and_odd_texts_are_not_authentic(tmp_path) -> None:
    keys = SigningKeys(tmp_path / "keys.json")
    keys.rotate("now")
    text = keys.sign(Acknowledgement("f", "c0", 1, "0" * 64, 2, "1" * 64, "now"))
    assert Acknowledgement.read(text).event == 2
    with pytest.raises(NotAuthentic, match="another upload"):
        verify_acknowledgement(text, keys.published(), b"another")
    for odd in ("", "a.b", "a.b.c", "..", text.replace(".", "", 1), "e30.e30.e30"):
        with pytest.raises(NotAuthentic):
            verify_acknowledgement(odd, keys.published())
    for odd in ({}, {"keys": [{}]}, {"keys": [{"crv": "Ed25519", "x": "?"}]}, []):
        with pytest.raises(NotAuthentic, match="The keys cannot be read"):
            verify_acknowledgement(text, odd)
    assert len(key_id(b"x")) == 16


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("junk")])
def test_keys_lost_while_it_serves_leave_a_server_those_it_read(server, spoil, caplog) -> None:
    body, before = encode("upload", trained("c0", server.join().content)), server.published()
    spoil(server.keys.path)
    told = server.ask("PUT", PATH, SECRET, content=body)
    assert (told.status_code, server.published()) == (200, before)
    verify_acknowledgement(told.headers[HEADER], before, body)
    warnings = [record.fields["problem"] for record in caplog.records if record.name == "artesian.keys"]
    assert len(warnings) == 1 and str(server.keys.path) in warnings[0]


def test_a_store_that_lost_its_keys_says_so_at_the_start(server, capsys) -> None:
    assert "no signing keys" not in capsys.readouterr().err  # the first start of a store makes them
    server.join()
    server.keys.path.unlink()
    signing_keys(server.store)
    said = capsys.readouterr().err
    assert "no signing keys" in said and "acknowledgements that they signed cannot be checked without it" in said

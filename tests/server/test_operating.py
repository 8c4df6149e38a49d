"""Commands of an operator against a store that is served: tokens that run out, tokens in a file, keys, proofs."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching import launcher
from promises.federation import APP, SECRET, Process, answer

from artesian.storage.acknowledgement import HEADER

pytest.importorskip("cryptography")
pytestmark = pytest.mark.heavy


def run(folder: Path, *words: str, code: int = 0) -> str:
    told = launcher().run(*words, cwd=folder)
    assert told.returncode == code, told.stderr
    return told.stderr if code else told.stdout


def test_a_token_runs_out_and_the_list_says_what_is_left(tmp_path) -> None:
    server = Process(tmp_path)
    text = run(tmp_path, "token", "make", "store", "spring", "--joins", "2", "--expires", "7d").strip()
    body = json.dumps({"samples": 5, "secret": SECRET}).encode()
    statuses = []
    for name in ("c0", "c1"):
        statuses.append(server.request("PUT", f"/v1/clients/{name}", text, body)[0])
        server.stop(signal.SIGKILL)  # what was used up stays used up
        server.start()
    statuses.append(server.request("PUT", "/v1/clients/c2", text, body)[0])
    assert statuses == [200, 200, 401]
    rows = {row["name"]: row for row in json.loads(run(tmp_path, "token", "list", "store", "--json"))}
    assert (rows["spring"]["state"], rows["spring"]["joined"], rows["spring"]["left"]) == ("used up", 2, 0)
    assert rows["spring"]["expires"] > "2026"
    assert "used up" in run(tmp_path, "token", "list", "store")
    assert "Not a duration" in run(tmp_path, "token", "make", "store", "x", "--expires", "soon", code=2)
    wrong = run(tmp_path, "token", "make", "store", "x", "--scope", "admin", "--joins", "2", code=2)
    assert "--joins has an effect only with --scope enrol" in " ".join(wrong.split())
    assert server.stop(signal.SIGTERM) == 0


def test_no_token_is_shown_unasked_and_a_file_keeps_them_private(tmp_path) -> None:
    (tmp_path / "served.py").write_text(APP)
    for options, words in (([], "no tokens yet: artesian token make"), (["--token-file", "tokens"], "serving toy")):
        (tmp_path / "log").write_text("")
        start = ["serve", "served:federation", "--store", "store", "--port", "0", *options]
        pid = launcher().start(start, tmp_path, tmp_path / "log")
        try:
            while words not in (tmp_path / "log").read_text():
                assert launcher().poll(pid) is None, (tmp_path / "log").read_text()
        finally:
            os.kill(pid, signal.SIGTERM)
            assert launcher().wait(pid) == 0
        assert "artesian_enrol_" not in (tmp_path / "log").read_text()
    kept = json.loads((tmp_path / "tokens").read_text())
    assert [kept["enrol"][:15], kept["admin"][:15]] == ["artesian_enrol_", "artesian_admin_"]
    assert (tmp_path / "tokens").stat().st_mode & 0o077 == 0


def test_an_acknowledgement_is_checked_by_a_command_across_a_rotation(tmp_path) -> None:
    server = Process(tmp_path)
    body = answer("c0", server.join("c0"))
    seen: dict[str, str] = {}
    assert server.request("PUT", "/v1/clients/c0/uploads/1", SECRET, body, seen=seen)[0] == 200
    (tmp_path / "proof").write_text(seen[HEADER] + "\n")
    (tmp_path / "upload").write_bytes(body)
    name = run(tmp_path, "keys", "rotate", "store").strip()
    (tmp_path / "keys.json").write_text(run(tmp_path, "keys", "list", "store", "--json"))
    assert json.loads(server.request("GET", "/v1/keys", server.token("admin"))[1])["keys"][0]["kid"] == name
    assert name in run(tmp_path, "keys", "list", "store")
    assert server.stop(signal.SIGTERM) == 0
    told = json.loads(run(tmp_path, "keys", "verify", "proof", "--key", "keys.json", "--upload", "upload"))
    assert (told["client"], told["number"], told["event"]) == ("c0", 1, 2)
    (tmp_path / "proof").write_text(seen[HEADER].replace("e", "f", 1))
    for proof, keys, words in (
        ("proof", "keys.json", "None of these keys signed the acknowledgement"),
        ("proof", "upload", "No keys in upload"),
        ("keys.json", "keys.json", "The text is not an acknowledgement"),
    ):
        assert words in " ".join(run(tmp_path, "keys", "verify", proof, "--key", keys, code=2).split())

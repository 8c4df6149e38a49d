"""P12: secrets and tokens leave no trace: not in logs, answers, metrics, or files."""

import json
import signal

import pytest
from promises.federation import Process, answer, draws
from promises.table import ROWS

from artesian.server.auth import Tokens
from artesian.server.messages import decode_task

FORMS = ("json", "text", "off")


def canary(rng) -> str:
    """A text that could be a secret, and appears nowhere by chance."""
    return f"canary{rng.randbytes(18).hex()}"


def leaks(secrets: list[str], places: dict[str, bytes]) -> list[str]:
    """Where one of these was found, whole or its latter half."""
    found = ((name, secret) for name, data in places.items() for secret in secrets if secret[16:].encode() in data)
    return [f"a secret in {name}" for name, _ in found]


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_no_secret_is_found_anywhere(tmp_path, promise, form) -> None:
    wanted, rng = -(-promise("canaries") // len(FORMS)), draws("canaries", form)
    server = Process(tmp_path, "--set", f"log={form}")
    enrol, admin = server.token("enrol"), server.token("admin")
    secrets, said = [], {}
    for turn in range(wanted):
        secrets.append(secret := canary(rng))
        for number, (method, path, headers, body) in enumerate(uses(secret, f"c{turn}", enrol)):
            _, told = server.request(method, path, body=body, headers=headers)
            said[f"answer {number} of turn {turn}"] = told
        behaved(server, secret, turn)
    tokens = Tokens(tmp_path / "store" / "tokens.json")
    made = [tokens.make("enrol", f"t{turn}") for turn in range(3)]
    for token in made:
        server.request("GET", "/v1/federation", token)
        server.request("GET", f"/v1/{token}?token={token}", enrol)
    said["metrics"] = server.request("GET", "/metrics", admin)[1]
    crash = server.request("GET", "/metrics", made[0])[1]
    assert server.stop(signal.SIGTERM) == 0
    log = (tmp_path / "log").read_text().splitlines(keepends=True)
    said["log"] = "".join(line for line in log if "shown only now" not in line).encode()
    said["another answer"] = crash
    said |= {str(path): path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert leaks([*secrets, *made, enrol, admin], said) == []
    assert form == "off" or b"request" in said["log"]


def uses(secret: str, client: str, enrol: str) -> list[tuple]:
    """Where a secret is put by those who mean well, and by those who do not."""
    bearer, join = {"authorization": f"Bearer {secret}"}, {"authorization": f"Bearer {enrol}"}
    task, upload = f"/v1/clients/{client}/task", f"/v1/clients/{client}/uploads/1"
    return [
        ("PUT", f"/v1/clients/{client}", join, json.dumps({"samples": 5, "secret": secret}).encode()),
        ("GET", task, bearer, None),
        ("GET", task, {"authorization": f"Basic {secret}"}, None),
        ("GET", task, {"authorization": secret}, None),
        ("GET", task, {"x-api-key": secret, "cookie": f"session={secret}", "referer": f"http://x/{secret}"}, None),
        ("GET", f"{task}?token={secret}&wait=0", {}, None),
        ("GET", f"{task}?token={secret}", bearer, None),
        ("GET", f"/v1/{secret}", bearer, None),
        ("GET", f"/{secret}/{secret}?{secret}={secret}", {}, None),
        (secret, "/v1/federation", {}, None),
        ("PUT", f"/v1/clients/{client}/uploads/{secret}", {}, b"x"),
        ("PUT", f"/v1/clients/{client}", join, json.dumps({"samples": 5, "secret": secret + "ü"}).encode()),
        ("PUT", f"/v1/clients/{client}", join, json.dumps({"samples": 5, "secret": [secret]}).encode()),
        ("PUT", f"/v1/clients/{client}", join, json.dumps({"secret": secret}).encode()),
        ("PUT", f"/v1/clients/{client}", join, f'{{"secret": "{secret}'.encode()),
        ("PUT", f"/v1/clients/{client}", join, json.dumps({"samples": 5, "secret": secret * 9}).encode()),
        ("PUT", "/v1/clients/other", bearer, json.dumps({"samples": 5, "secret": secret}).encode()),
        ("PUT", upload, bearer, secret.encode() * 3),
        ("PUT", upload, {**bearer, "if-none-match": secret, "content-type": secret}, b"x"),
        ("GET", "/metrics", bearer, None),
        ("GET", "/v1/openapi.json", bearer, None),
    ]


def behaved(server: Process, secret: str, turn: int) -> None:
    """One honest upload under this secret, so that it goes through everything."""
    if turn < len("01234567"):
        status, task = server.request("GET", f"/v1/clients/c{turn}/task", secret)
        assert status == 200
        path = f"/v1/clients/c{turn}/uploads/{decode_task(task).number}"
        assert server.request("PUT", path, secret, answer(f"c{turn}", task))[0] == 200


def test_a_leak_would_be_seen() -> None:
    secret = canary(draws("leak"))
    assert leaks([secret], {"log": f"refused {secret[10:]}".encode()})
    assert ROWS["canaries"].quick >= len(FORMS)

"""P26: what was accepted can be proved: an acknowledgement is checked without the server, and a forged one is seen."""

import base64
import json
import random
import signal

import pytest
from promises.federation import SECRET, Process, answer, draws

from artesian.errors import NotAuthentic
from artesian.server.keys import SigningKeys
from artesian.storage.acknowledgement import HEADER, Acknowledgement, to_base64, verify_acknowledgement

pytest.importorskip("cryptography")
FACTS = Acknowledgement("toy", "c0", 7, "ab" * 32, 41, "cd" * 32, "2026-11-17T10:36:01.123Z")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def packed(told: dict) -> str:
    return to_base64(json.dumps(told).encode())


def told(part: str) -> dict:
    return json.loads(base64.urlsafe_b64decode(part + "=="))


def another_letter(text: str, rng: random.Random, _: SigningKeys) -> str:
    at = rng.choice([i for i, letter in enumerate(text) if letter != "."])
    return text[:at] + rng.choice([letter for letter in LETTERS if letter != text[at]]) + text[at + 1 :]


def another_fact(text: str, rng: random.Random, _: SigningKeys) -> str:
    head, body, signature = text.split(".")
    facts = told(body)
    key = rng.choice(sorted(facts))
    facts[key] = facts[key] + 1 if isinstance(facts[key], int) else facts[key] + "0"
    return f"{head}.{packed(facts)}.{signature}"


def another_key(text: str, _: random.Random, forger: SigningKeys) -> str:
    """Signed by somebody else, under the name of the true key."""
    head, body, _ = text.split(".")
    return f"{head}.{body}.{forger.sign(Acknowledgement.read(text)).split('.')[2]}"


def its_own_key(text: str, _: random.Random, forger: SigningKeys) -> str:
    return forger.sign(Acknowledgement.read(text))


def another_scheme(text: str, rng: random.Random, _: SigningKeys) -> str:
    head, body, signature = text.split(".")
    scheme = {**told(head), "alg": rng.choice(["none", "HS256", "eddsa", "", None])}
    return f"{packed(scheme)}.{body}.{rng.choice(['', signature])}"


def cut(text: str, rng: random.Random, _: SigningKeys) -> str:
    return text[: rng.randrange(len(text))]


KINDS = (another_letter, another_fact, another_key, its_own_key, another_scheme, cut)


def check_forgeries(folder, times: int, rng: random.Random) -> None:
    """None of these is taken for genuine."""
    keys, forger = SigningKeys(folder / "keys.json"), SigningKeys(folder / "forger.json")
    keys.rotate("now")
    forger.rotate("now")
    text = keys.sign(FACTS)
    assert verify_acknowledgement(text, keys.published()) == FACTS
    for turn in range(times):
        kind = KINDS[turn % len(KINDS)]
        assert not is_genuine(kind(text, rng, forger), keys.published()), f"{kind.__name__} was taken for genuine"


def is_genuine(text: str, keys: dict) -> bool:
    try:
        return bool(verify_acknowledgement(text, keys))
    except NotAuthentic:
        return False


def test_no_altered_acknowledgement_is_taken_for_genuine(tmp_path, promise) -> None:
    check_forgeries(tmp_path, promise("forged"), draws("forged"))


@pytest.mark.heavy
def test_what_a_server_accepted_is_proved_after_it_is_gone(tmp_path) -> None:
    server = Process(tmp_path, "--set", "log=off")
    task, proofs, keys = server.join("c0"), [], []
    for number in range(1, 4):
        body = answer("c0", task)
        headers: dict[str, str] = {}
        status, task = server.request("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, body, seen=headers)
        assert status == 200
        proofs.append((headers[HEADER], body))
        keys.append(json.loads(server.request("GET", "/v1/keys", server.token("enrol"))[1]))
    assert keys[0] == keys[2]
    server.stop(signal.SIGKILL)
    events = [verify_acknowledgement(text, keys[0], body) for text, body in proofs]
    assert [found.event for found in events] == [2, 3, 4]
    assert len({found.chain for found in events}) == 3

"""Tasks as they travel: with the keys that clients of version 0.1 know, and no others."""

import json

import numpy as np

from artesian.core import Task
from artesian.params import seal
from artesian.server.messages import decode_task, encode_task

KEYS = {"models", "recipe", "settings", "mixture", "solo", "pause", "memo", "number", "base"}


def body(data: bytes) -> dict:
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    return json.loads(head["__metadata__"]["artesian"])["body"]


def test_a_task_travels_without_what_it_says_to_the_server() -> None:
    model = seal(np.ones(3, np.float32))
    task = Task({"k0": model}, "pick", {"seed": 1}, memo={"updates": 3}, number=2, returns=("own",), estimates=True)
    data = encode_task(task)
    told = body(data)
    assert (set(told), told["memo"]) == (KEYS, None)
    arrived = decode_task(data)
    assert (arrived.recipe, arrived.number, arrived.returns, arrived.estimates) == ("pick", 2, None, False)
    assert arrived.models["k0"].tolist() == [1, 1, 1]

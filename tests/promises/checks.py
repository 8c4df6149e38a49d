"""What must hold, as functions that say what is wrong: so that a test can show that each would see it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from artesian.core import Measured
from artesian.server.statuses import STATUSES
from artesian.storage.codec import digest, to_tree

TYPED = {kind.__name__: {status} for kind, status in STATUSES.items()} | {"UnknownRoute": {404, 405}}
Sent = Mapping[tuple[str, int], str]  # the digest of every upload a client began to send


def lost_or_twice(sent: Sent, acknowledged: Iterable[tuple[str, int]], journal: Sequence[Measured]) -> list[str]:
    """Every acknowledged upload is in the journal, with its own body; none is there twice, and none was made up.

    Of one that was clipped, the journal has the digest of what was sent.
    """
    kept = Counter((measured.upload.client, measured.upload.number) for measured in journal)
    wrong = [f"{key} was acknowledged and is lost" for key in acknowledged if key not in kept]
    wrong += [f"{key} is there {times} times" for key, times in kept.items() if times > 1]
    for measured in journal:
        key = measured.upload.client, measured.upload.number
        if key not in sent:
            wrong.append(f"{key} was never sent")
        elif sent[key] != (measured.digest or digest(to_tree(measured.upload))):
            wrong.append(f"{key} has another body")
    return wrong


def history(clients) -> tuple[Sent, list[tuple[str, int]]]:
    """What these clients sent, and what they saw acknowledged."""
    sent = {(c.client, number): mark for c in clients for number, mark in c.sent.items()}
    return sent, [(c.client, number) for c in clients for number in c.acknowledged]


def untyped(status: int, body: bytes) -> list[str]:
    """What is wrong with a refusal."""
    try:
        told = json.loads(body)
        assert set(told) == {"error", "rule", "got", "remedy"}, f"fields {sorted(told)}"
        assert status in TYPED.get(told["error"], ()), f"{told['error']} with status {status}"
        assert told["rule"] and told["remedy"], "no rule or no remedy"
        assert all(isinstance(text, str) and len(text) < 1000 for text in told.values()), "long or no text"
    except (ValueError, AssertionError) as error:
        return [f"{error}: {status} {body[:200]!r}"]
    return []

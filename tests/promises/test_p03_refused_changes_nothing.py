"""P3: a refused request changes nothing: not the state, not the journal, not a file."""

import asyncio
from dataclasses import replace
from functools import cached_property
from unittest.mock import patch

import numpy as np
import pytest
from promises.federation import MODEL, SECRET, Server, answer, draws, trained
from promises.mutations import joined, parted, retold, told

from artesian.params import seal
from artesian.server.app import create_app
from artesian.server.messages import decode_task
from artesian.server.settings import Settings
from artesian.server.statuses import STATUSES
from artesian.storage.codec import encode, to_tree

PATH = "/v1/clients/c0/uploads/{}"


class Bench:
    """A server with two uploads behind it, and the next one of client c0 in hand."""

    def __init__(self, folder) -> None:
        self.server = Server(folder, snapshot_every=100)
        first = self.server.join().content
        self.first = trained("c0", first)
        second = self.put(1, encode("upload", self.first)).content
        self.second = trained("c0", second)
        self.task = self.put(2, encode("upload", self.second)).content
        self.upload = trained("c0", self.task)
        self.number = decode_task(self.task).number
        self.server.auth.keep("ghost", SECRET)  # its join was never finished

    @cached_property
    def hasty(self):
        return self.app(grace=0.01, slowest=1e9, uploads_per_minute=None)

    @cached_property
    def rare(self):
        return self.app(uploads_per_minute=0.5)

    def app(self, **settings):
        return create_app(self.server.service, self.server.auth, Settings(**settings))

    def put(self, number: int, body, **options):
        return self.server.ask("PUT", PATH.format(number), SECRET, content=body, **options)

    def send(self, **changes):
        """The next upload, with something else in it."""
        return self.put(self.number, encode("upload", {**to_tree(self.upload), **changes}))

    def spoil(self, change):
        """The next upload, its parameters changed."""
        return self.send(models={k: change(p.copy()) for k, p in self.upload.models.items()})

    def state(self) -> tuple:
        """Everything a request could change: what is known, what is recorded, and the files."""
        store, files = self.server.store, {}
        for path in store.folder.rglob("*"):
            if path.is_file() and not path.name.startswith("artesian.db"):
                files[str(path.relative_to(store.folder))] = path.read_bytes()
        return self.server.digest(), store.count, store.chain, store.secrets(), files


def bad_format(bench, rng):
    body = answer("c0", bench.task)
    return bench.put(bench.number, rng.choice([body[: rng.randrange(len(body))], rng.randbytes(rng.randrange(400))]))


def unknown_format(bench, rng):
    head, tensors = parted(answer("c0", bench.task))
    return bench.put(bench.number, joined(retold(head, {**told(head), "format": rng.randint(2, 10**6)}), tensors))


def bad_client(bench, rng):
    if rng.random() < 0.5:
        return bench.send(samples=rng.choice([-1, -rng.randrange(10**9), 1 << 53, 1 << 60]))
    body = {"samples": rng.choice([-1, "5", None, 1.5, 2**53]), "secret": SECRET}
    return bench.server.ask("PUT", f"/v1/clients/new{rng.randrange(99)}", bench.server.enrol, json=body)


def unauthorized(bench, rng):
    method, path = rng.choice(
        [("GET", "/v1/clients/c0/task"), ("DELETE", "/v1/clients/c0"), ("PUT", "/v1/clients/new")]
    )
    return bench.server.ask(method, path, rng.randbytes(20).hex(), content=b"{}")


def too_large(bench, rng):
    length = str(rng.randint(2 << 20, 10**14))
    return bench.put(bench.number, b"x", headers={"content-length": length})


def too_slow(bench, rng):
    body = answer("c0", bench.task)

    async def drip():
        yield body[: rng.randrange(len(body))]
        await asyncio.sleep(0.1)
        yield b""

    return bench.put(bench.number, drip(), headers={"content-length": str(len(body))}, app=bench.hasty)


def busy(bench, rng):
    return bench.put(bench.number, answer("c0", bench.task), app=bench.rare)


def unknown_client(bench, rng):
    upload = replace(bench.upload, client="ghost", number=rng.randint(1, 9))
    return bench.server.ask(
        "PUT", f"/v1/clients/ghost/uploads/{upload.number}", SECRET, content=encode("upload", upload)
    )


def unknown_task(bench, rng):
    upload = replace(bench.upload, number=rng.choice([0, bench.number + 1, rng.randrange(bench.number + 1, 10**12)]))
    return bench.put(upload.number, encode("upload", upload))


def task_closed(bench, rng):
    return bench.put(1, encode("upload", replace(bench.first, samples=rng.randint(0, 99))))


def conflict(bench, rng):
    return bench.put(2, encode("upload", replace(bench.second, samples=bench.second.samples + rng.randint(1, 99))))


def wrong_models(bench, rng):
    (params,) = bench.upload.models.values()
    return bench.send(models=rng.choice([{}, {f"k{rng.randint(0, 9)}": params}, {"blend": params, "k0": params}]))


def wrong_shape(bench, rng):
    return bench.spoil(
        rng.choice([lambda p: p[: rng.randrange(len(p))], lambda p: p.astype("f8"), lambda p: p.reshape(1, -1)])
    )


def not_finite(bench, rng):
    def change(params):
        params[rng.randrange(MODEL.layout.trainable)] = rng.choice([np.nan, np.inf, -np.inf])
        return seal(params)

    return bench.spoil(change)


def too_far(bench, rng):
    return bench.spoil(lambda params: seal(params + np.float32(10.0 ** rng.randint(4, 16))))


def bad_mixture(bench, rng):
    return bench.send(mixture=rng.choice([{"k9": 0.5}, {"k0": -rng.random() - 1e-9}, {"k0": 1 + rng.random() + 1e-9}]))


def unknown_encoding(bench, rng):
    headers = {"content-encoding": rng.choice(["gzip", "br", "deflate", "zstd", "gzip, identity", "x" * 50])}
    return bench.put(bench.number, answer("c0", bench.task), headers=headers)


def not_retained(bench, rng):
    to = bench.server.store.count + rng.randint(1, 10**9)
    return bench.server.ask("POST", "/v1/rollback", bench.server.admin, json={"to": to})


def nothing_to_draw(bench, rng):
    headers = {"if-none-match": rng.choice(["*", '"a tag"'])}
    with patch.object(
        type(bench.server.service.coordinator.algorithm), "no_draw", "its clients have models of their own"
    ):
        return bench.server.ask("GET", "/v1/clients/c0/model", SECRET, headers=headers)


def unknown_route(bench, rng):
    path = rng.choice(["/page", "/v2/federation", "/v1/clients/c0/tasks", "/v1/clients/c0/uploads/1/2", "/admin"])
    return bench.server.ask(rng.choice(["GET", "PUT", "DELETE"]), path, SECRET)


REASONS = {
    make.__name__.title().replace("_", ""): make
    for make in (
        bad_format, unknown_format, bad_client, unauthorized, too_large, too_slow, busy, unknown_client, unknown_task,
        task_closed, conflict, wrong_models, wrong_shape, not_finite, too_far, bad_mixture, unknown_route,
        unknown_encoding, not_retained, nothing_to_draw,
    )
}  # fmt: skip


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "store")
    yield made
    made.server.close()


def test_every_refusal_is_among_these() -> None:
    assert set(REASONS) == {kind.__name__ for kind in STATUSES}


@pytest.mark.parametrize("reason", REASONS)
def test_a_refused_request_changes_nothing(bench, promise, reason) -> None:
    before = bench.state()
    check_refusals(bench, reason, promise("refusals") // len(REASONS))
    assert bench.put(bench.number, answer("c0", bench.task)).status_code == 200  # and the honest one is taken
    assert bench.state() != before


def check_refusals(bench: Bench, reason: str, times: int) -> None:
    before, rng = bench.state(), draws("refusals", reason)
    for turn in range(times):
        reply = REASONS[reason](bench, rng)
        assert reply.status_code >= 400, f"turn {turn}: it was taken"
        assert reply.json()["error"] == reason, (turn, reply.text)
        assert bench.state() == before, f"turn {turn}"

"""P24: an upgrade never answers differently in silence: the same replies from stores of every format, or a refusal."""

import json
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from fixtures.stores import HERE, STORED, canary, end, goes_on, opened, replies, state_digest, upload
from promises.federation import draws, federation, trained
from promises.test_p04_same_after_restart import ALGORITHMS

from artesian.algorithms import Confluence
from artesian.core import Step
from artesian.errors import ReplayDiffers
from artesian.server.messages import encode_task
from artesian.server.service import Service
from artesian.storage.history import STORE_FORMAT
from artesian.storage.reading import read_history
from artesian.storage.store import Store

FORMATS = sorted(path for path in HERE.glob("format-*"))
CASES = [(made, name) for made in FORMATS for name in STORED if (made / name).exists()]


@pytest.mark.parametrize(("made", "name"), CASES, ids=lambda one: getattr(one, "name", one))
def test_a_store_of_an_earlier_format_gives_the_same_replies(tmp_path, promise, made, name) -> None:
    promise("formats")
    expected = json.loads((made / "expected.json").read_text())
    folder = Path(shutil.copytree(made / name, tmp_path / "store"))
    assert read_history(folder).about["format"] == int(made.name.removeprefix("format-"))
    service = opened(folder, name)
    assert replies(service) == expected[name]["replies"]
    assert state_digest(service.coordinator.state) == expected[name]["state"]
    end(service)
    service = opened(folder, name)  # once more: this time from the snapshot that an upgrade begins with
    assert replies(service) == expected[name]["replies"]
    end(service)
    if canary() == expected["canary"]:  # last bits depend on the processor, those of a calibration more finely
        assert goes_on(folder, name) in expected[name]["later"]


def test_an_earlier_store_of_confluence_goes_on_with_calibrations_of_today(tmp_path) -> None:
    folder = Path(shutil.copytree(HERE / "format-2" / "confluence", tmp_path / "store"))
    service = opened(folder, "confluence")
    assert "usual" not in service.coordinator.state.memory["calibrated"]  # estimates go on by its rules until then
    upload(service, 3)
    memory = service.coordinator.state.memory
    assert "usual" in memory["calibrated"] and len(memory["sizes"]) >= 1
    replied = replies(service)
    end(service)
    again = opened(folder, "confluence")
    assert replies(again) == replied
    end(again)


def test_an_earlier_store_of_confluence_that_is_served_with_todays_default_asks_a_gate_from_then_on(tmp_path) -> None:
    folder = Path(shutil.copytree(HERE / "format-2" / "confluence", tmp_path / "store"))
    before = opened(folder, "confluence")
    replied = replies(before)
    end(before)
    today = {"confluence": Confluence()}
    service = opened(folder, "confluence", today)
    assert replies(service) == replied  # open tasks stay as they were given
    assert service.coordinator.algorithm == Confluence()
    upload(service, 2)
    (task,) = (reply.task for reply in service.coordinator.recorded("c0"))
    assert task.settings["gate"] == service.coordinator.state.memory["gate"]
    replied = replies(service)
    end(service)
    again = opened(folder, "confluence", today)
    assert replies(again) == replied
    end(again)


def test_there_is_a_fixture_of_every_format() -> None:
    assert [path.name for path in FORMATS] == [f"format-{number + 1}" for number in range(STORE_FORMAT)]


@pytest.mark.parametrize(("made", "name"), CASES, ids=lambda one: getattr(one, "name", one))
def test_a_store_of_an_earlier_format_replayed_by_altered_code_is_refused(tmp_path, promise, made, name) -> None:
    promise("formats-altered")
    folder = Path(shutil.copytree(made / name, tmp_path / "store"))
    before = read_history(folder)
    other = altered(STORED[name], 0, 2)
    assert "now gives another" in refusal(folder, other)
    assert read_history(folder) == before


def altered(algorithm, at: int, place: int):
    """The algorithm as another version might have it: from some fold on, a number of a cluster moves a little."""
    kind = type(algorithm)

    @dataclass(frozen=True)
    class Altered(kind):
        def fold(self, state, measured) -> Step:
            step = super().fold(state, measured)
            if state.version < at or not step.clusters:
                return step
            name = sorted(step.clusters)[-1]
            params = step.clusters[name].copy()
            params[place] += 1e-3
            return replace(step, clusters={**step.clusters, name: params})

    return Altered(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm) if field.init})


def check_altered(folder: Path, name: str, rng) -> None:
    """A store whose server crashed, replayed by altered code: refused, and as it was before."""
    service = open_with(folder, ALGORITHMS[name])
    for client in ("c0", "c1", "c2") * rng.randint(2, 3):
        service.coordinator.join(client, 5)
        for reply in service.coordinator.recorded(client):
            service.coordinator.receive(trained(client, encode_task(reply.task)))
    before, folds = service.coordinator.digest(), service.coordinator.state.version
    end(service)
    history = read_history(folder)
    other = altered(ALGORITHMS[name], rng.randrange(folds), rng.randrange(6))
    assert "another cluster" in refusal(folder, other), f"{name}: other answers, unseen"
    assert read_history(folder) == history
    again = open_with(folder, ALGORITHMS[name])
    assert again.coordinator.digest() == before
    end(again)


def refusal(folder: Path, algorithm) -> str:
    """Why this code does not go on with a store; nothing if it does."""
    try:
        end(open_with(folder, algorithm))
    except ReplayDiffers as error:
        return error.problem
    return ""


def open_with(folder: Path, algorithm) -> Service:
    served = federation(algorithm)
    store = Store(folder, served.identity)
    try:
        return Service.open(served, store, snapshot_every=1000)
    except BaseException:
        store.close()
        raise


def test_a_store_replayed_by_altered_code_is_refused(tmp_path, promise) -> None:
    rng = draws("altered")
    for turn in range(promise("altered")):
        check_altered(tmp_path / str(turn), list(ALGORITHMS)[turn % len(ALGORITHMS)], rng)

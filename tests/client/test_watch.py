"""A client that knows when to refresh: what it remembers at home, what it says, and whether a refresh helped."""

import numpy as np
import pytest
from homes import Home

from artesian.algorithms import FedAsync
from artesian.client.connect import Client
from artesian.client.in_use import Refreshed
from artesian.client.loop import refreshes
from artesian.client.transport import Transport
from artesian.client.watch import RefreshRecord, Watch
from artesian.core import Plan
from artesian.drift.detector import Batch
from artesian.errors import SettingError, StartedAfresh, StorageError
from artesian.learners.arrays import SoftmaxRegression
from artesian.recipes.accepting import Choice
from artesian.storage.codec import encode

MODEL = SoftmaxRegression(3, 2)
SMALL = "ks window=50 reference=50"


def data(turned: bool = False, samples: int = 100, seed: int = 0):
    """Two classes on both sides of 0 in the first feature; turned, on the other side."""
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % 2
    x = rng.normal(0, 0.3, (samples, 3)) + np.outer(2 * y - 1, [-1 if turned else 1, 0, 0]) + [0, 3.0 * turned, 0]
    return MODEL.learner(x.astype(np.float32), y)


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path, FedAsync(), MODEL, plan=Plan(rate=0.5, epochs=5))
    yield made
    made.close()


@pytest.fixture
def client(home):
    return Client(Transport("http://test", 5.0, transport=home.wire), home.token, home.folder / "c0", "c0")


def test_a_client_refreshes_when_its_data_drift_and_knows_that_it_helped(client) -> None:
    watch = client.watch("drift", [SMALL, "labels"])
    assert watch.wants_refresh(data()) and watch.decision.reason == "there is no model here yet"
    first = watch.refreshed(client.refresh(data()))
    assert (first.gain, first.why) == (None, "there is no model here yet")
    assert [watch.wants_refresh(data(seed=i)) for i in range(3)] == [False] * 3
    assert watch.decision.reason == "no drift was found"
    assert watch.wants_refresh(data(turned=True))
    record = watch.refreshed(client.refresh(data(turned=True)))
    assert record == watch.last == watch.history[1]
    assert record.why.startswith("ks found drift: the features changed in ")
    assert record.held_back == 20 and record.gain > 0.3
    assert str(record).startswith("helped: ") and str(record).endswith("on 20 samples held back")
    assert record.bytes_ > 2 * 4 * MODEL.layout.size  # a model up and one down
    assert not watch.wants_refresh(data(turned=True, seed=9))  # the new normal


def test_errors_losses_and_outputs_are_those_of_the_model_in_use(client) -> None:
    client.refresh(data(), accept="always")
    few = "window=50 reference=50 level=0.001"
    watch = client.watch("drift", [f"ks part=losses {few}", f"ks part=logits {few}"])
    assert not any(watch.wants_refresh(data(seed=seed)) for seed in (4, 5))
    assert watch.wants_refresh(data(turned=True))
    assert {drift.why.split()[1] for drift in watch.decision.drifts} == {"losses", "logits"}


def test_a_watch_goes_on_after_its_process_was_killed(client, home) -> None:
    client.refresh(data())
    watch = client.watch("drift and apart 1000", [SMALL])
    watch.refreshed()
    assert not watch.wants_refresh(data()) and not watch.wants_refresh(data(turned=True))
    refusal = watch.decision.reason
    assert refusal.endswith("but the last refresh is less than 16.7 min ago")
    again = client.watch("drift and apart 1000", [SMALL])
    assert again.history == watch.history
    again.wants_refresh(data())
    assert again.decision.reason == refusal  # the drift that was found before is still unanswered


def test_a_refresh_that_was_wanted_and_not_made_is_still_wanted(client) -> None:
    client.refresh(data())
    client.watch("request", []).request()
    assert client.watch("request", []).wants_refresh(data())
    watch = client.watch("request", [])
    assert watch.wants_refresh(data())
    assert watch.refreshed(client.refresh(data())).why == "it was asked for"
    assert not client.watch("request", []).wants_refresh(data())


def test_a_watch_with_other_detectors_says_that_they_start_afresh(client) -> None:
    client.refresh(data())
    client.watch("drift", [SMALL]).wants_refresh(data())
    with pytest.warns(StartedAfresh, match="was kept with other detectors or settings; these start afresh: labels"):
        client.watch("drift", [SMALL, "labels"])


@pytest.mark.parametrize(
    "damage", [b"nonsense", encode("watch", {"watching": np.zeros(0)}), encode("watch", {"watching": "x"})]
)
def test_a_damaged_file_is_not_repaired(client, damage) -> None:
    watch = client.watch("every 2", [])
    watch.request()
    (client.home / "watch").write_bytes(damage)
    with pytest.raises(StorageError, match="Cannot read what a watch remembered"):
        client.watch("every 2", [])


def test_without_a_client_it_looks_at_batches_and_samples(tmp_path) -> None:
    now = [0.0]
    watch = Watch("drift or age 60", [SMALL], home=tmp_path / "new", clock=lambda: now[0])
    watch.refreshed(bytes_=5)
    learner = data()
    assert not watch.wants_refresh(learner) and not watch.wants_refresh(learner.arrays())
    assert watch.wants_refresh(Batch(features=data(turned=True).x))
    watch.refreshed()
    now[0] = 60.0
    assert watch.wants_refresh(learner) and watch.decision.reason == "the last refresh was 1 min ago"
    assert [record.bytes_ for record in watch.history] == [5, 0]
    assert (tmp_path / "new" / "watch").stat().st_mode & 0o077 == 0  # it holds samples


def test_in_memory_alone_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Watch("every 1", []).wants_refresh(data())
    assert not list(tmp_path.iterdir())


def test_what_a_watch_cannot_do_is_said() -> None:
    with pytest.raises(
        SettingError, match="The policy 'drift and budget 1/1d' waits for drift, and nothing looks for it"
    ):
        Watch("drift and budget 1/day", [])
    with pytest.raises(SettingError, match="This watch needs losses, and knows no model"):
        Watch("drift", ["ks part=losses"]).wants_refresh(data())
    with pytest.raises(SettingError, match="A watch cannot look at a str"):
        Watch().wants_refresh("data")


def test_a_round_that_is_open_is_no_refresh() -> None:
    watch = Watch("request", [])
    watch.request()
    assert watch.refreshed(Refreshed((), Choice("previous", why="There is no task yet"))) is None
    assert watch.wants_refresh(data()) and watch.history == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (0.5, 0.75, "helped: 0.5000 to 0.7500 on 8 samples held back"),
        (0.5, 0.5, "did not help: 0.5000 to 0.5000 on 8 samples held back"),
        (0.5, 0.25, "made it worse: 0.5000 to 0.2500 on 8 samples held back"),
        (None, 0.5, "not known whether it helped: nothing to compare on data held back"),
    ],
)
def test_a_record_says_whether_it_helped(before, after, words) -> None:
    assert str(RefreshRecord(0.0, "drift", "drawn", 8, before, after)) == words


# the loop of `artesian client --when`


def test_the_loop_refreshes_only_when_it_should_and_says_why(home) -> None:
    with home.session() as session:
        turns = iter([data(), data(seed=1), data(seed=2), data(turned=True), data(turned=True, seed=1)])
        watch, changed, refresh = Watch("drift", [SMALL], client=session), [], session.refresh
        session.refresh = lambda learner, **how: (changed.append(how["changed"]), refresh(learner, **how))[1]
        told = list(refreshes(session, lambda: next(turns), 5, watch=watch))
    assert [line["refreshed"] for line in told] == [True, False, False, True, False]
    assert told[0]["reason"] == "there is no model here yet"
    assert told[1] == {"client": "c0", "samples": 100, "refreshed": False, "reason": "no drift was found"}
    assert told[3]["reason"].startswith("ks found drift") and told[3]["outcome"].startswith("helped: ")
    assert told[3]["gain"] == pytest.approx(watch.history[1].gain)
    assert [line["answered"] for line in told if line["refreshed"]] == [1, 2]
    assert changed == [False, True]  # the server is told of drift

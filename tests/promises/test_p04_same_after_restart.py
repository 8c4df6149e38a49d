"""P4: a restart gives exactly the same state, and so does the journal from its first event."""

import time

import pytest
from promises.checks import history, lost_or_twice
from promises.federation import APP, Process, clients, draws, federation, restored, trained, until

from artesian.algorithms import CDFL, Confluence, FedAvg, FedBuff
from artesian.errors import Refused
from artesian.server.messages import encode_task
from artesian.server.service import Service
from artesian.storage.store import Store

STUDIES = Confluence(
    estimator="calibrated", first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2
)
ALGORITHMS = {
    "cdfl": CDFL(),
    "confluence": STUDIES,  # there is nearly always a study under way
    "fedbuff": FedBuff(buffer_size=3),
    "fedavg": FedAvg(clients_per_round=2),
}
NAMES = [f"c{i}" for i in range(4)]


def opened(folder, algorithm) -> Service:
    served = federation(algorithm)
    return Service.open(served, Store(folder, served.identity), keep_uploads=True, snapshot_every=5)


def act(service: Service, rng) -> None:
    """A few things clients do."""
    coordinator = service.coordinator
    for _ in range(rng.randint(1, 8)):
        name = rng.choice(NAMES)
        if rng.random() < 0.1 and name in coordinator.state.members:
            coordinator.leave(name)
        coordinator.join(name, 5)
        for reply in coordinator.recorded(name):
            coordinator.receive(trained(name, encode_task(reply.task)))
        if rng.random() < 0.2:
            service._save()


def end(service: Service, rng) -> None:
    """In good order, or as a crash does: without a last snapshot."""
    if rng.random() < 0.5:
        service.close()
    else:
        service.store.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_restarted_it_has_the_same_bytes(tmp_path, promise, name) -> None:
    restarts, algorithm, rng = -(-promise("restarts") // len(ALGORITHMS)), ALGORITHMS[name], draws("restarts", name)
    service = opened(tmp_path, algorithm)
    for _ in range(restarts):
        act(service, rng)
        before = service.coordinator.digest()
        end(service, rng)
        service = opened(tmp_path, algorithm)
        assert service.coordinator.digest() == before
    service.close()


def test_rebuilt_from_its_first_event_it_has_the_same_bytes(tmp_path, promise) -> None:
    rng = draws("rebuilds")
    for turn in range(promise("rebuilds")):
        algorithm = list(ALGORITHMS.values())[turn % len(ALGORITHMS)]
        for _ in range(3):
            service = opened(tmp_path / str(turn), algorithm)
            act(service, rng)
            end(service, rng)
        restored(tmp_path / str(turn), algorithm)


@pytest.mark.heavy
def test_killed_during_studies_it_has_the_same_bytes(tmp_path, promise, figure) -> None:
    """Restored from its snapshot and rebuilt from its first event it is the same, and the study is made again."""
    kills, moments = promise("studies"), draws("studies")
    app = APP.replace("import CDFL", "import Confluence").replace("CDFL()", repr(STUDIES))
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off", app=app)
    calibrations = set()
    with clients(server, 4) as made:
        for _ in range(kills):
            wanted = sum(len(client.acknowledged) for client in made) + moments.randint(4, 12)
            until(lambda wanted=wanted: sum(len(client.acknowledged) for client in made) >= wanted)
            time.sleep(moments.uniform(0.0, 0.02))
            server.stop()
            restored(tmp_path / "store", STUDIES)
            calibrations.add(calibrated(tmp_path / "store"))
            server.start()
    server.stop()
    sent, acknowledged = history(made)
    _, journal = restored(tmp_path / "store", STUDIES)
    assert lost_or_twice(sent, acknowledged, journal) == []
    assert len(calibrations) == kills  # each life came further than the one before
    figure(f"{len(acknowledged)} uploads acknowledged, the newest calibration is of version {max(calibrations)}")


def calibrated(folder) -> int:
    """The version of the calibration in force in a store."""
    service = opened(folder, STUDIES)
    try:
        return service.coordinator.state.memory["calibrated"]["version"]
    finally:
        service.studies.close()
        service.store.close()


def test_another_state_has_another_digest(tmp_path) -> None:
    service = opened(tmp_path, CDFL())
    before = service.coordinator.digest()
    service.coordinator.join("c0", 5)
    assert service.coordinator.digest() != before
    with pytest.raises(Refused):
        service.coordinator.leave("nobody")
    service.close()

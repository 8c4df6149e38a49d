"""P4: a restart gives exactly the same state, and so does the journal from its first event."""

import pytest
from promises.federation import draws, federation, restored, trained

from artesian.algorithms import CDFL, FedAvg, FedBuff
from artesian.errors import Refused
from artesian.server.messages import encode_task
from artesian.server.service import Service
from artesian.storage.store import Store

ALGORITHMS = {"cdfl": CDFL(), "fedbuff": FedBuff(buffer_size=3), "fedavg": FedAvg(clients_per_round=2)}
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


def test_another_state_has_another_digest(tmp_path) -> None:
    service = opened(tmp_path, CDFL())
    before = service.coordinator.digest()
    service.coordinator.join("c0", 5)
    assert service.coordinator.digest() != before
    with pytest.raises(Refused):
        service.coordinator.leave("nobody")
    service.close()

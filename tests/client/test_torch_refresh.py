"""A torch network against a real server: trained by the task's recipe, and the answer loaded in place."""

import asyncio
import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from toyserver import Served  # noqa: E402

import artesian  # noqa: E402
from artesian.algorithms import CDFL  # noqa: E402
from artesian.core import Plan  # noqa: E402
from artesian.errors import LayoutError, SettingError  # noqa: E402
from artesian.learners.torch import TorchModel  # noqa: E402
from artesian.server.federation import Federation  # noqa: E402


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def points(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    return (rng.normal(0, 0.5, (count, 4)) + y[:, None]).astype(np.float32), y


def loader(seed: int) -> DataLoader:
    x, y = points(seed)
    return DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=8)


def federation(**options) -> Federation:
    model = TorchModel(network)
    proxies = {k: model.learner(*points(seed)) for k, seed in (("k0", 100), ("k1", 101))}
    return Federation(model, CDFL(), proxies, [model.start(0), model.start(1)], **options)


@pytest.fixture
def served(tmp_path):
    server = Served(tmp_path / "server", federation=federation())
    yield server
    server.close()


def state(net: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


@pytest.mark.heavy
def test_a_network_draws_between_uploads_in_place(served, tmp_path) -> None:
    net, other = network(), network()
    with (
        artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client,
        artesian.connect(served.url, token=served.token, home=tmp_path / "other") as neighbour,
    ):
        client.refresh(net, loader(1))
        neighbour.refresh(other, loader(2))
        ((_, params),) = client.draw_now(net)
        assert all(np.array_equal(array, state(net)[name]) for name, array in client.layout.unpack(params).items())
        drawn = client.draw_now(net, loader(1), hold_back=0.5)
        assert (drawn.won, drawn.held_back) == ("drawn", 20)
        with pytest.raises(SettingError, match="A str is not a torch network"):
            client.draw_now("net")
    assert served.state.version == 2


@pytest.mark.heavy
def test_a_network_is_refreshed_in_place(served, tmp_path) -> None:
    net = network()
    before, batches = state(net), loader(1)
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        ((_, params),) = client.refresh(net, batches)
        given = client.layout.unpack(params)
        for name, array in state(net).items():
            np.testing.assert_array_equal(array, given[name])
        assert not np.array_equal(before["0.weight"], given["0.weight"])
        client.refresh(net, batches, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
        client.refresh(net, batches, loss=nn.CrossEntropyLoss(reduction="none"))
        assert client.kept().number == 4
    assert [number for _, number in served.folded()] == [1, 2, 3]


@pytest.mark.heavy
def test_an_optimiser_of_the_clients_own_goes_on_after_a_restart(tmp_path) -> None:
    """Four steps in each of two refreshes, whose sessions share a home and nothing else; tuning adds none."""
    server = Served(tmp_path / "server", federation=federation(plan=Plan(batch=8, keep_optimizer_state=True)))
    for _ in range(2):
        with artesian.connect(server.url, token=server.token, home=tmp_path / "home") as client:
            client.refresh(network(), loader(1), tune=1, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
            (kept,) = client._notebook()["optimizers"]["states"]["train"]
    server.close()
    assert (kept["optimizer"], kept["step"]) == ("torch.optim.adamw:AdamW", 8)
    assert kept["exp_avg"].any()


def test_a_network_ends_with_the_tuned_answer(served, tmp_path) -> None:
    net = network()
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        ((_, params),) = client.refresh(net, loader(1), tune=2)
        tuned = client.layout.unpack(params)
        for name, array in state(net).items():
            np.testing.assert_array_equal(array, tuned[name])
        assert not np.array_equal(tuned["0.weight"], client.layout.unpack(client.draw())["0.weight"])


def test_a_network_ends_as_what_won_and_goes_back(served, tmp_path) -> None:
    """Of 80 samples 16 are held back."""
    x, y = points(1, 80)
    net, batches = network(), DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=8)
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        first = client.refresh(net, batches)
        assert first.held_back == 16 and set(first.scores) == {"drawn", "midpoint", "trained"}
        second = client.refresh(net, batches)
        assert set(second.scores) == {"drawn", "midpoint", "trained", "previous"}
        for ensemble in (second, client.held()):
            given = client.layout.unpack(ensemble[0][1])
            for name, array in state(net).items():
                np.testing.assert_array_equal(array, given[name])
        client.refresh(net, batches, accept="always")
        np.testing.assert_array_equal(state(net)["0.weight"], client.layout.unpack(client.draw())["0.weight"])
        client.previous(net)
        for name, array in state(net).items():
            np.testing.assert_array_equal(array, given[name])


def test_a_stream_holds_nothing_back_and_says_why(served, tmp_path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*map(torch.tensor, points(1, 80)), strict=True))

        def __len__(self) -> int:
            return 80

    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        refreshed = client.refresh(network(), DataLoader(Stream(), batch_size=8))
        assert (refreshed.won, refreshed.held_back) == ("midpoint", 0)
        assert refreshed.why.startswith("Taking data apart does not work with an IterableDataset")


@pytest.mark.heavy
def test_the_clients_own_optimizer_goes_before_the_tasks(served, tmp_path) -> None:
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        client.task(40)
        given = client.kept().models["blend"]
        still = network()
        client.refresh(still, loader(1), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
        trainable = client.layout.trainable
        events = served.service._writer.submit(lambda: list(served.store.events())).result()
        (upload,) = [event for event in events if event.kind == "upload"]
        np.testing.assert_array_equal(upload.measured.upload.params[:trainable], given[:trainable])
        with pytest.raises(SettingError, match="not a torch optimiser"):
            client.refresh(still, loader(1), optimizer=lambda _: 3)


def test_a_network_that_is_not_the_federations_is_told_where(served, tmp_path) -> None:
    other = nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2))
    kept = copy.deepcopy(state(other))
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        with pytest.raises(LayoutError, match=r"shape \(9, 4\), and the federation 0\.weight of shape \(8, 4\)"):
            client.refresh(other, loader(1))
        with pytest.raises(SettingError, match="without a loader"):
            client.refresh(network())
        with pytest.raises(SettingError, match="is not a torch network"):
            client.refresh("a network", loader(1))
    for name, array in state(other).items():
        np.testing.assert_array_equal(array, kept[name])


def test_the_same_awaited(served, tmp_path) -> None:
    async def refresh() -> int:
        async with artesian.connect_async(served.url, token=served.token, home=tmp_path / "home") as client:
            await client.refresh(network(), loader(2))
            return (await client.task(40)).number

    assert asyncio.run(refresh()) == 2


@pytest.mark.heavy
def test_a_watch_looks_at_a_network_and_its_loader(served, tmp_path) -> None:
    net = network()
    with artesian.connect(served.url, token=served.token, home=tmp_path / "home") as client:
        watch = client.watch("drift", ["ks part=losses window=20 reference=20", "ks window=20 reference=20"])
        assert watch.wants_refresh(net, loader(1)) and watch.decision.reason == "there is no model here yet"
        watch.refreshed(client.refresh(net, loader(1), accept="always"))
        assert not watch.wants_refresh(net, loader(2)) and not watch.wants_refresh(net, loader(3))
        x, y = points(4)
        moved = DataLoader(TensorDataset(torch.tensor(x + 5), torch.tensor(y)), batch_size=8)
        assert watch.wants_refresh(net, moved)
        assert "ks" in {drift.detector for drift in watch.decision.drifts}

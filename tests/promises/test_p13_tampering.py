"""P13: a store that was altered or cut is refused, or stands exactly where it was; it is never another one."""

import shutil
from pathlib import Path

import pytest
from promises.federation import SECRET, Server, answer, draws, federation

from artesian.errors import ArtesianError
from artesian.server.auth import Auth, Tokens
from artesian.server.hashing import NAME
from artesian.server.service import Service
from artesian.storage.store import Store

PAGE = 4096  # bytes
FILES = ("artesian.db", "artesian.db-wal", "mark")


def state(folder: Path) -> tuple | None:
    """All that a server starting here would go on with; None if it refuses to."""
    store = None
    try:
        store = Store(folder, federation().identity)
        service = Service.open(federation(), store)
        Auth(Tokens(folder / "tokens.json"), store, service.coordinator.state.members)
        return service.coordinator.digest(), store.count, store.chain, store.secrets()
    except ArtesianError:
        return None
    finally:
        if store is not None:
            store.close()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory) -> tuple[Path, tuple]:
    return left_behind(tmp_path_factory.mktemp("crashed"))


def left_behind(folder: Path) -> tuple[Path, tuple]:
    """A store as a crash leaves it, with a log that was never folded into its database; and its state."""
    server = Server(folder / "live", snapshot_every=4)
    tasks = {f"c{i}": server.join(f"c{i}", f"{SECRET} {i}").content for i in range(3)}
    for turn in range(9):
        name = f"c{turn % 3}"
        path = f"/v1/clients/{name}/uploads/{turn // 3 + 1}"
        reply = server.ask("PUT", path, f"{SECRET} {turn % 3}", content=answer(name, tasks[name]))
        assert reply.status_code == 200
        tasks[name] = reply.content
    shutil.copytree(folder / "live", folder / "store")
    server.close()
    found = state(shutil.copytree(folder / "store", folder / "look"))
    assert found is not None
    return folder / "store", found


def checkpointed(store: Path, folder: Path) -> Path:
    """The same store after its log was folded into the database."""
    shutil.copytree(store, folder)
    opened = Store(folder, federation().identity)
    opened.close()
    assert not (folder / "artesian.db-wal").exists() or not (folder / "artesian.db-wal").stat().st_size
    return folder


def flipped(folder: Path, rng) -> str:
    """Flip bits of one byte somewhere in the store."""
    files = [folder / name for name in FILES if (folder / name).exists()] + sorted((folder / "blobs").iterdir())
    path = rng.choice(files[:-1] if rng.random() < 0.7 else files)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if path.name == FILES[0] and rng.random() < 0.4:  # where the clients' secrets are
        at = max(0, data.find(f"{NAME}$".encode())) // PAGE * PAGE + rng.choice(
            [rng.randrange(60), rng.randrange(PAGE - 600, PAGE)]
        )
    data[at] ^= rng.randint(1, 255)
    path.write_bytes(data)
    return f"byte {at} of {path.name}"


def test_a_flipped_byte_is_refused_or_without_effect(tmp_path, crashed, promise, figure) -> None:
    wanted, rng = promise("flips"), draws("flips")
    kinds = [crashed[0], checkpointed(crashed[0], tmp_path / "checkpointed")]
    refused = 0
    for turn in range(wanted):
        copy = Path(shutil.copytree(kinds[turn % 2], tmp_path / "copy"))
        what = flipped(copy, rng)
        found = state(copy)
        assert found in (None, crashed[1]), f"turn {turn}, {what}: the store opens, and is another"
        refused += found is None
        shutil.rmtree(copy)
    figure(f"{refused} refused, the rest without effect")


def test_a_log_cut_short_is_refused_or_lost_nothing(tmp_path, crashed, promise, figure) -> None:
    wanted, rng, refused = promise("cuts"), draws("cuts"), 0
    for _ in range(wanted):
        refused += check_cut(crashed, tmp_path, rng)
    figure(f"{refused} refused, the rest whole")


def check_cut(crashed: tuple[Path, tuple], folder: Path, rng) -> bool:
    """Cut the log of a copy; it must be refused, or be whole. Was it refused?"""
    copy = Path(shutil.copytree(crashed[0], folder / "copy"))
    log = copy / "artesian.db-wal"
    length = rng.randrange(log.stat().st_size)
    log.write_bytes(log.read_bytes()[:length])
    (copy / "artesian.db-shm").unlink(missing_ok=True)
    found = state(copy)
    shutil.rmtree(copy)
    assert found in (None, crashed[1]), f"{length} bytes left: the store opens, and is another"
    return found is None

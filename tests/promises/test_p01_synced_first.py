"""P1: what is acknowledged was synced first. A killed process does not show this, its system calls do."""

import shutil
import signal
import subprocess

import pytest
from launching import SERVING, Launcher
from promises.federation import Process
from promises.table import needs
from promises.trace import OPTIONS, unsynced

pytestmark = pytest.mark.heavy


def traced(folder, uploads: int, prelude: str = "") -> tuple[int, list[str]]:
    """The acknowledgements of a server under strace, and what was wrong with them."""
    needs(shutil.which("strace"), "strace is not installed")
    works = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    needs(works, "strace may not trace here")
    trace = folder / "trace"
    source = Launcher(SERVING + prelude, under=("strace", *OPTIONS, "-o", str(trace)))
    try:
        server = Process(folder, "--set", "log=off", source=source)
        task = server.join("c0")
        for _ in range(uploads):
            task = server.upload("c0", task)
        assert server.stop(signal.SIGTERM) == 0
    finally:
        source.close()
    with open(trace, errors="replace") as lines:
        return unsynced(lines)


def test_blob_log_and_mark_are_synced_in_this_order_before_the_answer(tmp_path, promise) -> None:
    wanted = promise("syncs")
    found, wrong = traced(tmp_path, wanted)
    assert found == wanted
    assert wrong == []


DOCTORED = {
    "log synced": """
import artesian.storage.opened as opened
def prepare(connection, _):
    for pragma in ("journal_mode=WAL", "synchronous=OFF", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
opened._prepare = prepare
""",
    "mark synced": "os.fdatasync = lambda handle: None",
    "blob synced": """
import artesian.storage.blobs as blobs
real = blobs.write_file
def write_file(path, data, *, private=False, sync=True):
    real(path, data, private=private, sync=False)
blobs.write_file = write_file
""",
}


@pytest.mark.parametrize("step", DOCTORED)
def test_a_server_that_leaves_out_a_sync_is_seen(tmp_path, promise, step) -> None:
    promise("syncs-doctored")
    found, wrong = traced(tmp_path, 3, DOCTORED[step])
    assert found == 3
    assert any(step in text for text in wrong)

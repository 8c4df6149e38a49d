"""The how-to about serving, run as it is written: its federation, its two clients, and what they are shown."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from artesian.server.service import Service
from artesian.storage.store import Store

pytestmark = pytest.mark.heavy

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve-a-federation.md").read_text()
APP, LIBRARY, BY_HAND, WITHOUT_PROXIES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SERVE = re.findall(r"^    artesian (serve app:federation --store store --show-token)$", PAGE, re.M)[0]
SECRET = "0123456789abcdef0123456789abcdef"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The page's federation in a server process; what it has printed."""
    (folder / "app.py").write_text(APP)
    log = folder / "log"
    with log.open("w") as said:
        words = [sys.executable, "-m", "artesian.cli", *SERVE.split(), "--port", "0", "--set", "log=off"]
        server = subprocess.Popen(words, cwd=folder, stderr=said, stdout=said)
    try:
        while not re.search(r"serving .*\n", log.read_text()):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield log.read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def run(*words: str, cwd: Path) -> str:
    told = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    return told.stdout


def shown_after(words: str) -> str:
    """The example output that the page shows below these words."""
    return PAGE.split(f"{words}\n\n")[1].split("\n\n")[0]


def without_fractions(text: str) -> list[str]:
    """The words of an output but for fractions and times."""
    return [word for word in text.split() if not re.search(r"\d\.\d|\d:\d", word)]


def test_a_client_by_hand_joins_trains_and_uploads(tmp_path) -> None:
    (tmp_path / "client.py").write_text(BY_HAND)
    with served(tmp_path) as said:
        place = re.search(r"http://\S+", said)[0] + "/v1/clients/c07"
        enrol = {"authorization": "Bearer " + re.search(r"artesian_enrol_\S+", said)[0]}
        joined = httpx.put(place, json={"samples": 120, "secret": SECRET}, headers=enrol).raise_for_status()
        (tmp_path / "task.safetensors").write_bytes(joined.content)
        assert run("client.py", cwd=tmp_path) == "answers task 1\n"
        upload = (tmp_path / "upload.safetensors").read_bytes()
        own = {"authorization": f"Bearer {SECRET}"}
        httpx.put(f"{place}/uploads/1", content=upload, headers=own).raise_for_status()
    found = run("-m", "artesian.cli", "inspect", "store", cwd=tmp_path)
    assert without_fractions(found) == without_fractions(shown_after("    artesian inspect store"))


def test_the_client_library_does_it_in_one_call_and_the_start_prints_what_the_page_shows(tmp_path) -> None:
    with served(tmp_path) as said:
        url, token = re.search(r"http://\S+", said)[0], re.search(r"artesian_enrol_\S+", said)[0]
        code = LIBRARY.replace("http://127.0.0.1:8440", url).replace("artesian_enrol_...", token)
        run("-c", f"{code}\n    assert client.kept().number == 2", cwd=tmp_path)
    told = re.sub(r"(_enrol_|_admin_)\S+", r"\1...", said.replace(url, "http://127.0.0.1:8440"))
    told = re.sub(r"in \d+\.\d s", "in 0.1 s", told)
    assert told.split() == shown_after("shows them only once:").split()


def test_a_federation_without_proxy_sets_is_served(tmp_path) -> None:
    made: dict[str, Any] = {}
    exec(WITHOUT_PROXIES, made)
    service = Service.open(made["federation"], Store(tmp_path, made["federation"].identity))
    try:
        (reply,) = service.coordinator.join("c0", 100)
        assert list(service.coordinator.state.clusters) == ["k0"]
        assert reply.task.models["blend"].shape == (made["model"].layout.size,)
    finally:
        service.close()

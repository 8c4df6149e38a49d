"""The tutorial's own files, as they are printed, against a real server."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "a-network-on-tap.md"


def test_the_tutorials_network_is_refreshed(tmp_path) -> None:
    app, client = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "client.py").write_text(client)
    command = [sys.executable, "-m", "artesian.cli", "serve", "app:federation", "--store", "store", "--port", "0"]
    log = tmp_path / "log"
    with log.open("w") as said:
        server = subprocess.Popen([*command, "--set", "log=off"], cwd=tmp_path, stderr=said, stdout=said)
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert server.poll() is None, log.read_text()
        token = re.search(r"artesian_enrol_\S+", log.read_text())[0]
        told = subprocess.run(
            [sys.executable, "client.py", found[0]],
            cwd=tmp_path,
            env={**os.environ, "ARTESIAN_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"task {n}" for n in range(2, 7)]
    assert float(lines[-1].split()[-1]) > 0.5  # guessing would be 0.1

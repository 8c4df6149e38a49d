"""What the how-to about clients shows is run as it is written, against a real server."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from promises.table import needs
from servers import Process

from artesian.core import Task
from artesian.storage.codec import decode

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "a-client-in-any-language.md").read_text()
TOOLS = ("bash", "curl", "openssl", "sha256sum", "base64", "python3")
SCRIPT = "set -euo pipefail\n" + "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)[:-1])
LEAVE = re.findall(r"```sh\n(.*?)```", PAGE, re.S)[-1]


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", ["CDFL()", "FedBuff(buffer_size=1)"])
def test_a_client_by_curl_alone(tmp_path, algorithm) -> None:
    needs(all(map(shutil.which, TOOLS)), f"{', '.join(TOOLS)} are not all on the PATH")
    server = Process(tmp_path / "server", algorithm=algorithm)
    try:
        home = tmp_path / "home"
        home.mkdir()
        (home / "answer.py").write_text(re.search(r'```python\n("""answer.py.*?)```', PAGE, re.S).group(1))
        env = {**os.environ, "URL": server.url, "ENROL": server.token}
        for number in (1, 2):
            bash(SCRIPT, tmp_path, env)
            given = (home / "task.safetensors").read_bytes()
            assert given == server.task("c08", (home / "secret").read_text().strip())
            assert decode("task", given, Task).number == number + 1
        bash(SCRIPT.split("\ncurl")[0] + "\n" + LEAVE, tmp_path, env)
    finally:
        members = server.stop()
    assert (members["c08"]["answered"], members["c08"]["present"]) == (2, False)


def bash(script: str, cwd: Path, env: dict[str, str]) -> None:
    told = subprocess.run(["bash", "-c", script], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr + told.stdout

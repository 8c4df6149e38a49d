"""The tutorial's own files, as they are printed, against a real server."""

import re
import sys
from pathlib import Path

import pytest
from launching import printed, served

pytestmark = pytest.mark.heavy

pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "a-network-on-tap.md"


def test_the_tutorials_network_is_refreshed(tmp_path) -> None:
    app, client = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "client.py").write_text(client)
    with served(tmp_path, "app:federation", "--store", "store") as (url, token):
        told = printed(sys.executable, "client.py", url, cwd=tmp_path, ARTESIAN_TOKEN=token)
    lines = told.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"task {n}" for n in range(2, 7)]
    assert float(lines[-1].split()[-1]) > 0.5  # guessing would be 0.1

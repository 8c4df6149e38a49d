"""A server in process, for the tests that need one."""

import pytest
from promises.federation import Server


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "store")
    yield made
    made.close()

import pytest
from homes import Home


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    made.close()

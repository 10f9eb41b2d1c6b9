"""A server of environments that add numbers."""

import pytest

from tests.server.conftest import serving
from tests.server.toy_environments import Add, Adder, Sum


@pytest.fixture(scope="module")
def adders():
    with serving(environment=Adder, action=Add, observation=Sum) as running:
        yield running

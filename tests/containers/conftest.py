"""An engine and an image with Python, for all tests of this folder together."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers import image
from tests.containers.ready import address_of, client_of_engine


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The beginning of a command line of the engine, which has the image."""
    if "REPL_TEST_CONTAINERS" not in os.environ:
        pytest.skip("only `make test-containers` starts containers")
    engine = client_of_engine(tmp_path_factory.mktemp("engine"))
    try:
        found = engine.__enter__()
    except image.NoImageError as error:
        pytest.skip(str(error))
    try:
        yield found
    finally:
        engine.__exit__(None, None, None)


@pytest.fixture(scope="module")
def daemon(client: list[str]) -> Iterator[None]:
    """Have sandboxes of a module use the engine, where it is not the one that they would use."""
    address = address_of(client)
    with pytest.MonkeyPatch.context() as patch:
        if address is not None:
            patch.setenv("DOCKER_HOST", address)
        yield

"""An engine and an image with Python, for all tests of this folder together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import image

HERE = Path(__file__).parent
ENGINE = (sys.executable, str(HERE / "engine.py"))
IMAGE = os.environ.get("REPL_TEST_IMAGE", "python:3.11-slim")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The beginning of a command line that talks to the engine, which has the image."""
    if "REPL_TEST_CONTAINERS" not in os.environ:
        pytest.skip("only `make test-containers` starts containers")
    folder = tmp_path_factory.mktemp("engine")
    command = [*ENGINE, str(folder)]
    found = run(*command)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    try:
        client = json.loads(found.stdout)
        if run(*client, "image", "inspect", IMAGE).returncode != 0:
            pulled = run(*client, "pull", IMAGE)
            if pulled.returncode != 0:
                make(client, folder, pulled.stderr.strip())
        yield client
    finally:
        subprocess.run([*command, "--stop"], check=True)


def make(client: list[str], folder: Path, why: str) -> None:
    try:
        image.of_packages(client, IMAGE, folder)
    except image.NoImageError as error:
        pytest.skip(f"no image {IMAGE}: {why}; {error}")


@pytest.fixture(scope="module")
def daemon(client: list[str]) -> Iterator[None]:
    """Have sandboxes of a module use the engine, where it is not the one that they would use."""
    with pytest.MonkeyPatch.context() as patch:
        if len(client) > 1:
            patch.setenv("DOCKER_HOST", client[client.index("--host") + 1])
        yield

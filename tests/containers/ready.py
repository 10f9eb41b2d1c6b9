"""An engine that has an image with Python: one that answers, or one started for the caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers import image

ENGINE = (sys.executable, str(Path(__file__).with_name("engine.py")))
IMAGE = os.environ.get("REPL_TEST_IMAGE", "python:3.11-slim")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


@contextmanager
def client_of_engine(folder: Path) -> Iterator[list[str]]:
    """The beginning of a command line that talks to an engine with `IMAGE`; `folder` is its own.

    Raises:
        image.NoImageError: saying what is missing.
    """
    command = [*ENGINE, str(folder)]
    found = run(*command)
    if found.returncode != 0:
        raise image.NoImageError(found.stderr.strip())
    try:
        client: list[str] = json.loads(found.stdout)
        if run(*client, "image", "inspect", IMAGE).returncode != 0:
            pulled = run(*client, "pull", IMAGE)
            if pulled.returncode != 0:
                _make(client, folder, pulled.stderr.strip())
        yield client
    finally:
        subprocess.run([*command, "--stop"], check=True)


def _make(client: list[str], folder: Path, why: str) -> None:
    try:
        image.of_packages(client, IMAGE, folder)
    except image.NoImageError as error:
        raise image.NoImageError(f"no image {IMAGE}: {why}; {error}") from error


def address_of(client: list[str]) -> str | None:
    """Return the DOCKER_HOST of the engine of `client`; None: leave DOCKER_HOST as it is."""
    return client[client.index("--host") + 1] if "--host" in client else None


def only_if_there(client: list[str], runtime: str | None) -> None:
    """Skip where the engine lacks `runtime`: `engine.py` gives those that it starts some."""
    import pytest  # benchmarks use the rest of this module, without it

    told = run(*client, "info", "--format", "{{json .Runtimes}}").stdout
    if runtime is not None and f'"{runtime}"' not in told:
        pytest.skip(f"the engine has no runtime {runtime}")

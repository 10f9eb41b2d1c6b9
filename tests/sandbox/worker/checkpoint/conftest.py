"""Sandboxes and helpers of the tests of checkpoints."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import (
    Limits,
    Sandbox,
)
from tests.security.abuse.interpreters import with_packages

LIMITS = Limits(timeout=60, grace=60, memory="512MiB")
VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture(scope="module")
def other_python() -> Iterator[str]:
    """Another interpreter, with cloudpickle, that every user may run."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        path = with_packages(["cloudpickle"], folder, {})
        if path is None:
            pytest.skip("no Python besides this one that can make virtual environments")
        asked = subprocess.run([path, "-V"], check=True, capture_output=True, text=True).stdout
        if asked.split()[1].split(".")[:2] != VERSION.split(".")[:2]:
            pytest.skip("no other build of this minor version, and checkpoints are of one")
        yield path
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", limits=LIMITS) as sandbox:
        yield sandbox


def saved(sandbox: Sandbox, *cells: str, **arguments: Any) -> bytes:
    """Return the checkpoint of a session that ran `cells`."""
    with sandbox.session(**arguments) as session:
        for cell in cells:
            outcome = session.run(cell)
            assert outcome.ok, outcome
        return session.checkpoint()

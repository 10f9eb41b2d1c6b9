"""Servers as processes of their own, for as long as they are measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PATIENCE = 30.0  # seconds for a server to end


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    pid: int


@contextmanager
def ours(recovery: str) -> Iterator[Server]:
    """Our server, with recovery "restart" or "snapshot": `ours.py`."""
    with _run([sys.executable, "-m", "benchmarks.server.ours", recovery]) as server:
        yield server


@contextmanager
def floor() -> Iterator[Server]:
    """The least that a server of such frames can be: `floor.py`."""
    with _run([sys.executable, "-m", "benchmarks.server.floor"]) as server:
        yield server


@contextmanager
def openenv(python: str, environment: str) -> Iterator[Server]:
    """OpenEnv's server with an environment of `openenv_peers.py`; `python` has its libraries."""
    with _run([python, "-m", "benchmarks.server.openenv_peers", environment]) as server:
        yield server


@contextmanager
def _run(command: Sequence[str]) -> Iterator[Server]:
    """Run a program that prints its address as its first line."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=_environment()
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url.startswith("http://"):
            process.kill()
            raise RuntimeError(f"{command} did not start")
        try:
            yield Server(url, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_PATIENCE)
            finally:
                process.kill()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}

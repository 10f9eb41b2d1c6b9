"""Connections over the limit are refused without effects on existing sessions."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.server.conftest import ask, peer, serving
from tests.waiting import eventually

MIB = 1 << 20
SPARE = 512  # descriptors of other parts of this process


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _refused(server) -> float:
    for line in server.manager.telemetry.metrics.text().decode().splitlines():
        if line.startswith('repl_connections_refused_total{reason="total"} '):
            return float(line.rpartition(" ")[2])
    return 0.0


@contextmanager
def _descriptors(needed: int) -> Iterator[None]:
    """As many as needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        pytest.skip(f"this machine allows {hard} open files, and {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("number", "most"), [(300, 100), pytest.param(10_000, 2048, marks=pytest.mark.slow)]
)
def test_a_client_that_connects_too_often_affects_no_other(number: int, most: int) -> None:
    # Silent connections are not closed meanwhile, however long their creation takes.
    settings = {"connections": most, "body_s": 600.0}
    with (
        _descriptors(number + most + SPARE),
        serving(settings) as server,
        peer(server) as one,
    ):
        one.reset()
        before = _memory()
        with ExitStack() as stack:
            for _ in range(number):
                address = ("127.0.0.1", server.port)
                stack.enter_context(socket.create_connection(address, timeout=60))
            assert one.run("1 + 1")["value"] == "2"
            eventually(lambda: _refused(server) == number - (most - 1))
            # Some hundred times what a connection that says nothing takes.
            assert _memory() - before < 64 * MIB
        eventually(lambda: ask(server, "GET", "/health")[0] == 200)
        assert one.run("2 + 2")["value"] == "4"

"""The host and its zygote: abandoned replies, and a zygote that ends meanwhile."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from repl_sandbox import Sandbox
from repl_sandbox.errors import SandboxClosed
from repl_sandbox.host.zygote import ZygoteHandle
from repl_sandbox.protocol import control
from tests.internals import zygote_client


def test_abandoned_sessions_do_not_block_the_zygote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads the zygote's reports of their ends, and its socket holds only so many."""
    pair = control.pair

    def narrow() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there can be
        return ours, theirs

    monkeypatch.setattr(control, "pair", narrow)
    with Sandbox(recovery="restart") as sandbox:
        zygote = zygote_client(sandbox)
        monkeypatch.undo()
        for _ in range(20):
            zygote.abandon(zygote.begin(0, 1 << 20, {}))
        with sandbox.session() as session:
            assert session.run("6 * 7").value == "42"


# Its descriptors are closed one after the other, as the kernel closes those of a killed process,
# and the process exists a little longer.
DYING = """
import json, signal, socket, sys

host = socket.socket(fileno=int(sys.argv[-2]))
number = json.loads(host.recv(1 << 16))["number"]
facts = {"data_segment": 0, "privileged": True, "base": "", "process_limit": 0}
facts |= {"python": "3", "implementation": "cpython"}
host.send(b"answer %d %b" % (number, json.dumps(facts).encode()))
_, theirs, _, _ = socket.recv_fds(host, 1 << 16, 8)
host.close()
for fd in theirs:
    socket.close(fd)
signal.pause()
"""


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[ZygoteHandle]:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}{DYING}", encoding="utf-8")
    python.chmod(0o755)
    handle = ZygoteHandle(str(python), (), {})
    yield handle
    handle.close()


def test_a_zygote_that_is_ending_counts_as_ended(dying: ZygoteHandle) -> None:
    """The sandbox starts another zygote after this error, and after no other."""
    with pytest.raises(SandboxClosed):
        dying.finish(dying.begin(0, 1 << 20, {}))


def test_a_session_that_ends_with_its_zygote_as_it_starts_is_reported_as_such() -> None:
    with Sandbox(recovery="restart") as sandbox:
        zygote = zygote_client(sandbox)
        links = zygote.begin(0, 1 << 20, {})
        ready = select.poll()
        ready.register(links.worker, select.POLLIN)
        assert ready.poll(60_000)
        processes = psutil.Process(zygote.pid).children(recursive=True)
        os.kill(zygote.pid, signal.SIGKILL)
        assert psutil.wait_procs(processes, timeout=60)[1] == []
        with pytest.raises(SandboxClosed):
            zygote.finish(links)

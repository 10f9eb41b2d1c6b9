"""Requests that a host sends to its zygote for each session."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import repl_sandbox
from repl_sandbox.protocol import control
from tests.internals import branch_commands

ENGINE = Path(repl_sandbox.__file__).parent


def test_a_request_arrives_with_its_descriptors_which_close_on_exec() -> None:
    ours, theirs = control.pair()
    with ours, theirs:
        fds = [theirs.fileno()] * control.MAX_DESCRIPTORS
        socket.send_fds(ours, [control.spawn(7, 3, 1, b'{"a": [1, 2]}')], fds)
        request, received = control.receive_request(theirs)
    try:
        assert request.split(b" ", 4) == [b"spawn", b"7", b"3", b"1", b'{"a": [1, 2]}']
        assert len(received) == control.MAX_DESCRIPTORS
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    finally:
        for fd in received:
            os.close(fd)


def test_the_settings_of_a_session_come_back_as_they_were() -> None:
    limits = {"DATA": (1 << 62) + 1, "NOFILE": 256}
    made = control.settings(1 << 40, limits, 3, 9)
    expected = {"workspace": 1 << 40, "rlimits": limits, "snapshots": 3, "processes": 9}
    assert control.read_settings(made) == expected


def test_the_protocol_has_every_command_of_the_host() -> None:
    """To a zygote, to init and to a file helper."""
    senders = [*(ENGINE / "session").rglob("*.py"), *(ENGINE / "host").glob("*.py")]
    given = {op for file in senders for op in re.findall(r'"op": "(\w+)"', file.read_text())}
    given |= branch_commands()
    page = (ENGINE.parents[1] / "docs" / "protocol.md").read_text()
    assert {"nest", "branch", "put"} < given
    assert {op for op in given if f'{{"op": "{op}"' not in page} == set()


def test_end_of_file_of_the_host_is_no_request() -> None:
    ours, theirs = control.pair()
    ours.close()
    with theirs:
        assert control.receive_request(theirs) == (b"", [])


def test_a_reply_matches_its_request_number() -> None:
    assert control.read_answer(control.gone(12, known=True)) == (12, b"1")
    number, answer_to = control.read_answer(control.answer_to(3, {"failed": "a b"}))
    assert (number, json.loads(answer_to)) == (3, {"failed": "a b"})


# In a process of its own, which has no other threads: the fork is for such.
_LOOKS_NOTHING_UP = """
import ctypes, os, sys
from repl_sandbox.native import forks
from repl_sandbox.native.libc import call
from repl_sandbox.native.library import SyscallBatch

# The host's name stays as it is, whoever runs this: the size is past what can be set.
step = SyscallBatch([("first", [call("close", -1, tolerated=(9,))])])
step.run()
step = SyscallBatch([("hostname", [call("sethostname", b"x" * 1000, 1000)])])

def look_up(library, name):
    raise AssertionError(f"{name} was looked up")

ctypes.CDLL.__getattr__ = ctypes.CDLL.__getitem__ = look_up
pid = forks.fork()
if pid == 0:
    status = 1
    try:
        step.run()
    except OSError:
        status = 0
    finally:
        os._exit(status)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_resolves_no_symbols() -> None:
    """ctypes searches all libraries for a function's first use: once in each session, if late."""
    subprocess.run([sys.executable, "-c", _LOOKS_NOTHING_UP], check=True, timeout=60)

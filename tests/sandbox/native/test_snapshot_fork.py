"""A fork whose child waits without Python: its state, and the fate of both processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

# The caller leads a session and closes the descriptors that its child must close; its parent reaps.
_CALLER = """
import json, os, resource, signal, sys
from repl_sandbox.native.forks import SnapshotFork

fork = SnapshotFork(signal.SIGUSR1)
telling, told = os.pipe()
if os.fork():
    os.close(told)
    sys.stdout.write(os.read(telling, 1 << 16).decode())
    while True:
        try:
            os.wait()
        except ChildProcessError:
            sys.exit()
os.setsid()
above = os.dup2(told, 200)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
try:
    {body}
finally:
    os._exit(0)
"""

_WAITS = """
    pid = fork(above)
    if pid == 0:
        open_still = [fd for fd in (told, above) if os.path.exists(f"/proc/self/fd/{fd}")]
        os.write(told, json.dumps([open_still == [told], os.getpid()]).encode())
        os._exit(0)
    while os.getpgid(pid) != pid:
        os.sched_yield()
    os.kill(pid, signal.SIGTERM)
    os.fstat(above)
    os.kill(pid, signal.SIGUSR1)
"""

_NO_ROOM = """
    os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    try:
        fork(above)
    except OSError as error:
        os.fstat(above)
        os.write(told, json.dumps([error.errno]).encode())
"""


_NO_ROOM_FOR_SIGNALS = """
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
    pid = fork(above)
    os.kill(pid, signal.SIGKILL)
    os.write(told, json.dumps([pid > 0]).encode())
"""


def _told(body: str) -> list[object]:
    script = _CALLER.replace("    {body}", body.strip("\n"))
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=30
    )
    told = json.loads(run.stdout or "[]")
    assert isinstance(told, list)
    return told


def test_the_child_closes_its_descriptors_and_ignores_signals() -> None:
    closed, pid = _told(_WAITS)
    assert closed is True
    assert isinstance(pid, int)


def test_the_caller_is_unchanged_when_no_process_can_be_forked() -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone can become a user who may have no process")
    assert _told(_NO_ROOM) == [errno.EAGAIN]


def test_the_caller_goes_on_when_the_signal_queue_is_full() -> None:
    assert _told(_NO_ROOM_FOR_SIGNALS) == [True]

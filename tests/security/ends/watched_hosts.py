"""Hosts in processes of their own, and their processes, watched until they end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator

import psutil

from repl_sandbox import Sandbox
from tests.internals import zygote_pid
from tests.waiting import PATIENCE

# Each session has a worker, a child of it, an orphan, and a child in a session of its own.
HOST = """
import os, signal, sys
from repl_sandbox import Sandbox

sandbox = Sandbox({arguments})
sessions = [sandbox.session() for _ in range(3)]
for session in sessions:
    outcome = session.run('''
import os, signal, subprocess
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sh", "-c", "sleep 1000 &"]).wait()
subprocess.Popen(["sleep", "1000"], start_new_session=True)
''')
    assert outcome.ok, outcome
print("ready", flush=True)
sys.stdin.readline()
{end}
"""


class Watched:
    """Processes that are to end; pidfds, so that a number given again cannot deceive."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self.descriptors: dict[int, int] = {}
        for process in processes:
            with contextlib.suppress(
                ProcessLookupError
            ):  # for example a snapshot that was replaced
                self.descriptors[process.pid] = os.pidfd_open(process.pid)

    def left(self) -> set[int]:
        """The processes that have not ended after a while."""
        return {
            pid
            for pid, fd in self.descriptors.items()
            if not select.select([fd], [], [], PATIENCE)[0]
        }

    def close(self) -> None:
        for fd in self.descriptors.values():
            os.close(fd)


@contextlib.contextmanager
def watched(processes: list[psutil.Process]) -> Iterator[Watched]:
    """Watch `processes`."""
    watch = Watched(processes)
    try:
        yield watch
    finally:
        watch.close()


@contextlib.contextmanager
def host(end: str = "", arguments: str = "") -> Iterator[subprocess.Popen[str]]:
    """A host with three sessions; it waits for a line, then runs `end`."""
    with started(HOST.format(end=end, arguments=arguments)) as process:
        yield process


@contextlib.contextmanager
def started(script: str) -> Iterator[subprocess.Popen[str]]:
    """A host that runs `script`, from when it says that it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=PATIENCE)[1]
            yield process
        finally:
            process.kill()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The zygote of `process`, its sessions, and what they started."""
    members = psutil.Process(process.pid).children(recursive=True)
    assert len(members) >= 1 + 3 * 5
    return members


def zygote_of(sandbox: Sandbox) -> psutil.Process:
    """The process that the sessions of a sandbox are forked from."""
    return psutil.Process(zygote_pid(sandbox))

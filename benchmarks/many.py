"""Cost of many sessions: sessions per second, and memory per session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psutil

from repl_sandbox import Sandbox

from . import bare_fork
from .figure import Figure
from .samples import Samples

_ROUNDS = 9
_SECONDS = 1.0  # of sessions in each round: some hundreds
_MOST_LOOKS = 10  # at the memory of all; one or two, as a rule


def rate() -> Iterator[Figure]:
    """Sessions per second (create, 1+1, close) of two zygotes, each with a process that asks."""
    taken: dict[str, list[float]] = {"ours": [], "bare": []}
    with ExitStack() as stack:
        drivers = {kind: [_driver(kind, stack) for _ in range(2)] for kind in taken}
        for number in range(_ROUNDS):
            for kind in list(taken) if number % 2 else reversed(list(taken)):
                taken[kind].append(_together(drivers[kind]))
    yield Figure(
        "rate",
        "sessions per second, 2 zygotes, no recovery",
        "/s",
        Samples(tuple(taken["ours"])),
        Samples(tuple(taken["bare"])),
        "bare-fork sessions, 2 parents",
    )


def _driver(kind: str, stack: ExitStack) -> subprocess.Popen[str]:
    """One that is ready, and waits to be told to measure."""
    command = [sys.executable, "-m", "benchmarks.rate", kind]
    pipe = subprocess.PIPE
    driver = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    assert driver.stdin is not None
    stack.callback(driver.stdin.close)
    _said(driver)
    return driver


def _together(drivers: list[subprocess.Popen[str]]) -> float:
    """Both at the same time: one that is alone has twice the processors."""
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write(f"{_SECONDS}\n")
        driver.stdin.flush()
    return sum(float(_said(driver)) for driver in drivers)


def _said(driver: subprocess.Popen[str]) -> str:
    assert driver.stdout is not None
    line = driver.stdout.readline()
    if not line:
        raise RuntimeError("what was to make sessions has ended")
    return line


def memory() -> Iterator[Figure]:
    """Proportional set size of an idle session: all its processes, shared pages split.

    Needs root: the processes of a session do not let other users of its kind look at them.
    """
    if os.geteuid() != 0:
        print("memory is not measured: it needs root", file=sys.stderr)
        return
    count = 100
    with Sandbox(recovery="restart") as sandbox:
        before = descendants(os.getpid())
        sessions = [sandbox.session() for _ in range(count)]
        for session in sessions:
            session.run("1+1")
        ours = pss(lambda: descendants(os.getpid()) - before) / count
        for session in sessions:
            session.close()
    with bare_fork.Parent() as parent:
        children = [parent.session() for _ in range(count)]
        for child in children:
            child.run("1+1")
        floor = pss(lambda: descendants(parent.pid)) / count
        for child in children:
            child.close()
    yield Figure(
        "memory",
        "memory (PSS) per idle session of 100, no recovery",
        "MB",
        Samples((ours,)),
        Samples((floor,)),
        "bare-fork child of 100",
    )


def descendants(pid: int) -> set[int]:
    """The processes below `pid`."""
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def pss(processes: Callable[[], set[int]]) -> float:
    """Bytes of PSS of these processes together, none of which ended meanwhile.

    Each worker has itself copied after its answer, and the copy before that one ends.
    """
    for _ in range(_MOST_LOOKS):
        with suppress(FileNotFoundError, ProcessLookupError):
            return _pss(processes())
    raise RuntimeError("processes of sessions go on ending")


def _pss(pids: set[int]) -> float:
    """As proc_pid_smaps(5) tells."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            kilobytes = next(line.split()[1] for line in rollup if line.startswith("Pss:"))
        total += int(kilobytes) * 1024
    return float(total)

"""Limits that no single process can be held to: what all processes of a session use together.

Covers: the sum of private memory and of CPU time over a session's processes, looked at 20 times a
second while a cell runs and now and then while none does. Does not cover: bursts between two
looks (RLIMIT_DATA bounds each process), and the memory of the session's tmpfs, which have sizes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil

from .session.core import Core
from .types import KillReason

# Memory can grow by some 100 MB between two looks on the machines this was measured on.
_PERIOD = 0.05
# Sessions without a running cell, looked at in turn: this many a period.
_IDLE_A_PERIOD = 4


class Watchdog:
    """One thread for all sessions of a sandbox; it starts with the first session."""

    def __init__(self, template_memory: int) -> None:
        self._template_memory = template_memory
        self._cores: dict[int, Core] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._turn = 0

    def add(self, core: Core) -> None:
        """Watch a session."""
        with self._lock:
            self._cores[id(core)] = core
            if self._thread is None:
                name = "repl-watchdog"
                self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
                self._thread.start()
        self._wanted.set()

    def remove(self, core: Core) -> None:
        """Stop watching a session."""
        with self._lock:
            self._cores.pop(id(core), None)
            if not self._cores:
                self._wanted.clear()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed:
                return
            for core in self._due():
                reason = self._breach(core)
                if reason is not None:
                    core.breach(reason)
            time.sleep(_PERIOD)

    def _due(self) -> list[Core]:
        with self._lock:
            cores = list(self._cores.values())
        # A cell younger than a period is left alone: most steps take microseconds.
        young = time.monotonic() - _PERIOD
        due = [core for core in cores if 0 < core.running_since < young]
        idle = [core for core in cores if not core.running_since]
        for _ in range(min(_IDLE_A_PERIOD, len(idle))):
            self._turn += 1
            due.append(idle[self._turn % len(idle)])
        return due

    def _breach(self, core: Core) -> KillReason | None:
        memory, cpu = self._usage(core)
        if memory > int(core.limits.memory):
            return "memory"
        limit = core.limits.cpu_seconds
        return "cpu" if limit is not None and cpu > limit else None

    def _usage(self, core: Core) -> tuple[int, float]:
        """Private bytes beyond the template's, and CPU seconds, of all processes of a session."""
        memory, cpu = 0, 0.0
        for pid in _descendants(core.links.pid):
            try:
                process = psutil.Process(pid)
                held = process.memory_info()
                times = process.cpu_times()
            except psutil.Error:
                continue
            memory += max(0, held.rss - held.shared - self._template_memory)
            cpu += times.user + times.system
            cpu += times.children_user + times.children_system
        return memory, cpu


def _descendants(pid: int) -> Iterator[int]:
    """`pid` and all processes below it, as /proc/PID/task/TID/children lists them (proc(5))."""
    yield pid
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return
    for child in children:
        yield from _descendants(int(child))

"""`SessionUsage`: one line of a session, and whether the session uses more than it may."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..types import KillReason
from . import proc_memory

if TYPE_CHECKING:
    from ..session.core import Core
    from ..zygote.client.session_links import SessionLinks

# How many times as long as it took, until a directory is looked through again.
_REST = 9
# Looks that must agree where copies wait: a kernel under load takes its time to end one.
_SURE = 3


class SessionUsage:
    """The session of `core`; `template_memory` is in bytes, and not its own."""

    def __init__(self, core: Core, template_memory: int) -> None:
        self.core = core
        self._template_memory = template_memory
        self._exact_due = 0.0  # on the monotonic clock
        self._folder_due = 0.0
        self._passed = False  # whether more processes were there that run
        self._suspicions = 0  # looks in a row that found too much memory

    def full(self, processes: list[int]) -> bool:
        """Whether `processes`, all that the session has, are as many as may be; it is noted."""
        # What is seen is of all branches of a session, and so are the limits.
        look = self.core.links.outside.look
        most = self.core.limits.processes + self._lines * (self.core.ours + 1) - 1
        full: bool = look("threads", processes) > most
        if full:
            self.core.is_full()
        # In namespaces the kernel refuses what is more. Elsewhere it counts by user, who may have
        # processes besides the session's.
        counted = full and bool(self.core.links.folder)
        self._passed = counted and look("running", processes) > most
        return full

    @property
    def _lines(self) -> int:
        return self.core.links.family.lines

    def breach(self, processes: list[int]) -> KillReason | None:
        """The limit that `processes` were seen to pass, when `full` was asked of them."""
        limits, links, lines = self.core.limits, self.core.links, self._lines
        limit = lines * int(limits.memory)
        # First, for a flood of processes also holds much memory.
        if self._passed:
            return "processes"
        exceeds = None
        if links.group is not None:
            most = limit + self._template_memory
            exceeds = group_exceeds(links, processes, most, lines * self.core.ours)
        if exceeds is None:
            exceeds = self._exceeds(processes, limit + self.core.lent)
        # The memory of a copy that is just being ended is in no process and yet in the group.
        if exceeds is not None:
            self._suspicions = self._suspicions + 1 if exceeds else 0
        if self._suspicions >= (1 if self.core.ours == 1 else _SURE):
            return "memory"
        seconds = limits.cpu_seconds
        if seconds is not None and self._cpu_seconds(processes) > lines * seconds:
            return "cpu"
        return "workspace" if links.folder and self._overfull() else None

    def _cpu_seconds(self, processes: list[int]) -> float:
        seconds: float = self.core.links.outside.look("cpu_seconds", processes)
        return seconds

    def _overfull(self) -> bool:
        """Whether a directory that the kernel does not bound holds more than it may."""
        start = time.monotonic()
        if start < self._folder_due:
            return False
        workspace, links = int(self.core.limits.workspace), self.core.links
        overfull: bool = links.outside.look("use", links.folder, workspace) > workspace
        end = time.monotonic()
        self._folder_due = end + _REST * (end - start)
        return overfull

    def _exceeds(self, processes: list[int], limit: int) -> bool | None:
        """Whether a session holds more than `limit` bytes beyond its template's.

        What only its waiting copies hold does not count. None: it is too early for another look.
        """
        links = self.core.links
        look = links.outside.look
        # init and the worker are forks of the template: its pages show in both, and are shared.
        most = limit + 2 * self._template_memory
        if look("resident", processes) <= most:
            return False
        copies = look("copies", links.pid, processes, links.family.lines * self.core.ours)
        processes = [pid for pid in processes if pid not in copies]
        if look("resident", processes) <= most:
            return False
        # That counts a page once for each process that maps it, as after os.fork. What counts it
        # once walks the page tables, 16 ms for each process's gigabyte: half of the time at most.
        start = time.monotonic()
        if start < self._exact_due:
            return None
        memory = look("proportional", processes) + look("also_held", copies)
        exceeded: bool = memory - self._template_memory > limit
        end = time.monotonic()
        self._exact_due = end + (end - start)
        return exceeded


def group_exceeds(links: SessionLinks, processes: list[int], limit: int, ours: int) -> bool | None:
    """Whether a group's processes hold more than `limit`; None if it cannot be told."""
    group, init = links.group, links.pid
    assert group is not None
    try:
        if group.version == 1:  # which does not say how much of its memory page tables are
            limit -= proc_memory.page_tables(processes)
        if group.held() <= limit:
            return False
        # Files of the session's tmpfs are charged to the group as well. They come and go between
        # the looks at each: what was there before or after is given to them.
        files = proc_memory.in_files(init)
        memory = group.held() - max(files, proc_memory.in_files(init))
        if memory <= limit:
            return False
        return memory - proc_memory.own(proc_memory.copies(init, processes, ours)) > limit
    except FileNotFoundError:
        return False  # the session has ended
    except OSError:
        return None

"""`SessionUsage`: the resources that a session uses, compared with its limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..types import KillReason
from . import proc_memory

if TYPE_CHECKING:
    from ..session.core import Core
    from ..zygote.client.session_links import SessionLinks

# The pause between two scans of a directory, as a multiple of the duration of a scan.
_REST = 9
# Measurements in a row that must agree if there are snapshots: a kernel under load takes its time
# to end one.
_SURE = 3


class SessionUsage:
    """The usage of the session of `core`; its template's `template_memory` bytes do not count."""

    def __init__(self, core: Core, template_memory: int) -> None:
        self.core = core
        self._template_memory = template_memory
        self._exact_due = 0.0  # on the monotonic clock
        self._folder_due = 0.0
        self._too_many_running = False  # whether there were more running processes than allowed
        self._suspicions = 0  # measurements in a row with too much memory

    def full(self, processes: list[int]) -> bool:
        """Note and return whether `processes`, all of the session, are as many as allowed."""
        # The processes are those of all branches of a session, and so are the limits.
        query = self.core.links.baseline.query
        limit = self.core.limits.processes + self._branches * (self.core.engine_processes + 1) - 1
        full: bool = query("threads", processes) > limit
        if full:
            self.core.note_process_limit()
        # In namespaces the kernel refuses more processes. Elsewhere it counts by user, who may have
        # processes besides the session's.
        counted = full and bool(self.core.links.folder)
        self._too_many_running = counted and query("running", processes) > limit
        return full

    @property
    def _branches(self) -> int:
        return self.core.links.family.branches

    def breach(self, processes: list[int]) -> KillReason | None:
        """Return the limit that `processes` exceed, after `full` was called with them."""
        limits, links, branches = self.core.limits, self.core.links, self._branches
        limit = branches * int(limits.memory)
        # First, because a flood of processes also uses much memory.
        if self._too_many_running:
            return "processes"
        exceeds = None
        if links.group is not None:
            allowed = limit + self._template_memory
            exceeds = group_exceeds(
                links, processes, allowed, branches * self.core.engine_processes
            )
        if exceeds is None:
            exceeds = self._exceeds(processes, limit + self.core.mapped_bytes)
        # The memory of a snapshot that is ending is in no process, but still in the cgroup.
        if exceeds is not None:
            self._suspicions = self._suspicions + 1 if exceeds else 0
        if self._suspicions >= (1 if self.core.engine_processes == 1 else _SURE):
            return "memory"
        seconds = limits.cpu_seconds
        if seconds is not None and self._cpu_seconds(processes) > branches * seconds:
            return "cpu"
        return "workspace" if links.folder and self._is_workspace_full() else None

    def _cpu_seconds(self, processes: list[int]) -> float:
        seconds: float = self.core.links.baseline.query("cpu_seconds", processes)
        return seconds

    def _is_workspace_full(self) -> bool:
        """Return whether a directory that the kernel does not bound holds more than allowed."""
        start = time.monotonic()
        if start < self._folder_due:
            return False
        workspace, links = int(self.core.limits.workspace), self.core.links
        exceeds: bool = links.baseline.query("use", links.folder, workspace) > workspace
        end = time.monotonic()
        self._folder_due = end + _REST * (end - start)
        return exceeds

    def _exceeds(self, processes: list[int], limit: int) -> bool | None:
        """Return whether a session holds more than `limit` bytes beyond its template's.

        The memory of waiting snapshots alone does not count. None: it is too early for another
        measurement.
        """
        links = self.core.links
        query = links.baseline.query
        # init and the worker are forks of the template: both show its pages, which are shared.
        allowed = limit + 2 * self._template_memory
        if query("resident", processes) <= allowed:
            return False
        snapshots = query(
            "snapshots", links.pid, processes, links.family.branches * self.core.engine_processes
        )
        processes = [pid for pid in processes if pid not in snapshots]
        if query("resident", processes) <= allowed:
            return False
        # That counts a page once for each process that maps it, as after os.fork. The exact
        # measurement walks the page tables, 16 ms for each process's gigabyte, and may take half of
        # the time at most.
        start = time.monotonic()
        if start < self._exact_due:
            return None
        memory = query("proportional", processes) + query("shared_with_others", snapshots)
        exceeded: bool = memory - self._template_memory > limit
        end = time.monotonic()
        self._exact_due = end + (end - start)
        return exceeded


def group_exceeds(
    links: SessionLinks, processes: list[int], limit: int, engine_processes: int
) -> bool | None:
    """Return whether a cgroup's processes hold more than `limit`; None if it is unknown."""
    group, init = links.group, links.pid
    assert group is not None
    try:
        if group.version == 1:  # its total includes page tables, which version 1 does not report
            limit -= proc_memory.page_tables(processes)
        if group.memory_used() <= limit:
            return False
        # Files of the session's tmpfs are charged to the cgroup as well. They change between the
        # two readings: the larger amount, before or after, is subtracted.
        files = proc_memory.in_files(init)
        memory = group.memory_used() - max(files, proc_memory.in_files(init))
        if memory <= limit:
            return False
        return (
            memory - proc_memory.own(proc_memory.snapshots(init, processes, engine_processes))
            > limit
        )
    except FileNotFoundError:
        return False  # the session has ended
    except OSError:
        return None

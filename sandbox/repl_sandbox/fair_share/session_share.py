"""`SessionShare`: slows down a session without CPU credit, and every fork bomb.

A session that is slowed down has a low weight of contended processors, if it has a cgroup, and long
slices (`scheduling_policy.py`). Sessions of many busy processes are stopped between their turns
(`throttle.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

from ..jail.processes import descendants
from ..limits import proc_stat
from ..limits.proc_stat import ProcStat
from ..zygote.client.session_links import SessionLinks
from .cpu_credit import CpuCredit
from .scheduling_policy import SchedulingPolicy
from .throttle import CROWD, Throttle


class SessionShare:
    """The share of one session and its branches, from `now` on, on the monotonic clock.

    `charged`: whether it has CPU credit to spend; otherwise only fork bombs are slowed down.
    """

    def __init__(self, now: float, *, charged: bool) -> None:
        self._charged, self._credit = charged, CpuCredit(now)
        self._scheduling, self._throttle = SchedulingPolicy(), Throttle()
        self._lock = threading.Lock()
        self._links: list[SessionLinks] = []  # of the session and its branches
        self._workers: Collection[int] = ()  # not stopped
        self.slowed = False
        self.throttled = False
        self.is_stopped = False  # until its turn

    @property
    def busy(self) -> bool:
        """True if the session has to be observed again soon, although no cell runs."""
        return self.slowed or self.throttled or self._scheduling.restores > 0

    @property
    def is_fork_bomb(self) -> bool:
        """True if it is throttled as a fork bomb."""
        return self.throttled and self._throttle.is_fork_bomb

    def join(self, links: SessionLinks) -> None:
        """Add the links of a session or branch."""
        with self._lock:
            self._links.append(links)

    def leave(self, links: SessionLinks) -> None:
        """Remove a session or branch, which is about to end, and restore its weight.

        The caller that ends it waits for its processes, and others for the caller.
        """
        with self._lock:
            self._links.remove(links)
            self._set_weight(links, slowed=False)
            # a session that ends has no turns any more, and dies although it is stopped
            if not self._links:
                self.throttled = self.is_stopped = False

    def observe(
        self, links: SessionLinks, pids: Sequence[int], cells: int, now: float, *, full: bool
    ) -> None:
        """Observe `pids`, all processes of the session, and slow them down or stop them
        accordingly.

        `cells`: the number begun since the last call. `full`: no more processes can be forked.
        """
        if not self._charged and len(pids) <= CROWD and not self.throttled:
            return
        processes = proc_stat.read_all(pids)
        # Outside of the lock, for which a caller that ends the session waits.
        used = proc_stat.cpu_seconds(processes)
        wants = self._charged and any(each.wants for each in processes)
        with self._lock:
            if not self._links:
                return
            self._throttle.observe(processes, full=full)
            is_crowded = self._throttle.is_crowded
            if self._charged:
                has_credit = self._credit.charge(used, cells, now, wants=wants)
                # A process of low weight that forks holds locks of the kernel for long.
                self._lower(links, processes, slowed=not has_credit and not is_crowded)
            self.throttled = is_crowded and (self._charged or self._throttle.is_fork_bomb)
            if not self.throttled:
                self._resume()
            elif self.is_stopped:
                self._stop(processes)

    def _lower(self, links: SessionLinks, processes: Sequence[ProcStat], *, slowed: bool) -> None:
        grouped = self._set_weight(links, slowed=slowed)
        if slowed:
            self._scheduling.lower(links.pid, processes, batch=not grouped)
        else:
            self._scheduling.restore(processes)

    def wait(self, workers: Collection[int]) -> None:
        """Stop all processes but `workers`, because it is the turn of other sessions."""
        with self._lock:
            if self.throttled and self._links:
                self._workers = workers
                self._throttle.resume(workers)
                if not self.is_stopped:
                    self.is_stopped = True
                    self._stop(proc_stat.read_all(descendants(self._links[0].pid)))

    def resume(self) -> None:
        """Continue the stopped processes."""
        with self._lock:
            if self.is_stopped and self._links:
                self._resume()

    def _stop(self, processes: Sequence[ProcStat]) -> None:
        code_processes = proc_stat.without_init(processes, self._links[0].pid)
        self._throttle.stop(each for each in code_processes if each.pid not in self._workers)

    def _resume(self) -> None:
        self._throttle.resume_all()
        self.is_stopped = False

    def _set_weight(self, links: SessionLinks, *, slowed: bool) -> bool:
        """Set the weight of the session's cgroup; False if it has none that is weighed."""
        self.slowed, group = slowed, links.group
        if group is None or not group.weighted:
            return False
        with suppress(OSError):  # the session has ended, or its cgroup was removed
            group.set_weight(slowed=slowed)
        return True

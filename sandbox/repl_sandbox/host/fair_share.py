"""`FairScheduler`: how the sessions of one sandbox share the processors.

A session spends its `CpuCredit`; one without credit is slowed down by its `SessionShare`, and one
of many busy processes runs in turns of a `Throttle`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ..jail.processes import descendants
from ..native.libc import set_scheduling
from ..session.core import Core
from . import proc
from .links import SessionFamily, SessionLinks
from .proc import ProcStat, without_init

# `CpuCredit`: CPU time that a session may use before the scheduler slows it down.
#
# A session earns CPU time with each cell, and a little while none of its processes wants a
# processor. It can save some, and pays for what it uses. A session without credit is slowed down
# until it has rested for a few seconds. So a client of short steps is never slowed down for a
# session that computes for long, and sessions that all compute share the processors equally.
#
# A rate of CPU time alone does not distinguish these: each of twenty loops on two processors uses
# little, and each of many clients of short steps uses as much.

# CPU seconds for each cell. A short one takes 2 ms with all that belongs to it.
A_CELL: Final = 0.01
# CPU seconds for each second in which no process of the session wants a processor.
EARNED: Final = 0.02
# Credit of a new session. It is small because a client that always opens a new session always has
# it: opening takes 10 ms, a first look at the data some more.
FIRST: Final = 0.03
# The most credit: enough for a cell that computes for a moment, amid short ones.
MAX_CREDIT: Final = 0.1
# The most debt, however long a session computed: it is paid after 4 s of rest.
MAX_DEBT: Final = 0.05
# Seconds for which one observation of a process that wants a processor counts, unless the
# observation before it was the same: in a large sandbox a session is observed every half minute.
_STANDS: Final = 0.1


class CpuCredit:
    """The credit of one session that begins at `now` (seconds, on a monotonic clock)."""

    def __init__(self, now: float) -> None:
        self.has_credit = True
        self._since = now
        self._used = 0.0
        self._saved = FIRST
        self._was_busy = False

    def charge(self, used: float, cells: int, now: float, *, wants: bool) -> bool:
        """Return whether the session has credit now, after `used` CPU seconds since it began.

        `cells`: the number begun since the last call. `wants`: a process of the session runs or
        waits for nothing but a processor. A `used` that has shrunk counts as unchanged: the CPU
        time of processes that nobody waited for is lost.
        """
        rest = now - self._since
        if wants:
            rest = 0.0 if self._was_busy else max(0.0, rest - _STANDS)
        credit = self._saved + EARNED * rest + A_CELL * cells
        saved = credit - max(0.0, used - self._used)
        self._saved = min(MAX_CREDIT, max(-MAX_DEBT, saved))
        self._since, self._used, self._was_busy = now, used, wants
        # The threshold for recovering is a little above that for running out, so that the state
        # does not change at each observation.
        self.has_credit = self._saved >= (0.0 if self.has_credit else FIRST)
        return self.has_credit


# `SchedulingPolicy`: long scheduler slices, and the batch policy, for a session that is slowed
# down.
#
# EEVDF runs the process with the next deadline first; the deadline is as far off as the process's
# slice is long and its weight small. Of twenty loops of little weight one is always about to
# reach its deadline, so a process that wakes waits for several of them, a tick of 4 ms each. Long
# slices move their deadlines off. A process may have a slice of its own since Linux 6.12; older
# kernels ignore the request.
#
# A batch process (SCHED_BATCH, sched(7)) does not interrupt a running process when it wakes.
# Neither needs a privilege, and the same user can undo both. The idle class is not used: a
# session in it starves beside a process that computes for hours, and an ordinary user cannot undo
# it.

# Nanoseconds. Beside 20 loops on two processors, the longest of a hundred wake-up latencies was 12
# ms, with slices of 6 ms 3.0, of 10 1.8, of 20 1.7, of 100 (the maximum) 1.4. A cell of a session
# that is slowed down waits for the slices of the others.
LONG: Final = 20_000_000
_ORDINARY: Final = 0
# Processes changed in one call: those of a fork bomb are always new, and inherit the attributes.
_MAX_CHANGED: Final = 64
# Calls: a process that was forked during one may have inherited its parent's attributes, and
# proc(5) may leave out a child while others are forked or end.
_RESTORES: Final = 8
# Errors for a process of another user, and of a kernel without the call.
_NEVER: Final = (errno.EPERM, errno.ENOSYS)


class SchedulingPolicy:
    """The scheduling attributes of one session's processes."""

    def __init__(self) -> None:
        self._lowered: dict[int, int] = {}  # process id: its start
        self.restores = 0  # remaining calls in which processes are restored
        self._works = True

    def lower(self, init: int, processes: Sequence[ProcStat], *, batch: bool) -> None:
        """Give `processes`, except `init` and its helpers, long slices, and with `batch` that
        policy.

        Processes that they fork inherit both.
        """
        if not self._works:
            return
        current = {each.pid: each for each in without_init(processes, init)}
        lowered = {pid: began for pid, began in self._lowered.items() if pid in current}
        new = [each for pid, each in current.items() if lowered.get(pid) != each.began]
        for each in new[:_MAX_CHANGED]:
            self._set(each, os.SCHED_BATCH if batch else os.SCHED_OTHER, LONG)
            lowered[each.pid] = each.began
        self._lowered, self.restores = lowered, _RESTORES

    def restore(self, processes: Sequence[ProcStat]) -> None:
        """Give `processes` the kernel's defaults again."""
        if self.restores:
            self._lowered = {}
            self.restores -= 1
            for each in processes:
                self._set(each, os.SCHED_OTHER, _ORDINARY)

    def _set(self, process: ProcStat, policy: int, nanoseconds: int) -> None:
        for thread in _threads(process.pid) if process.threads > 1 else (process.pid,):
            try:
                set_scheduling(thread, policy, nanoseconds)
            except OSError as error:  # or the process has ended
                if error.errno in _NEVER:
                    self._works = False


def _threads(pid: int) -> Iterator[int]:
    try:
        yield from map(int, os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return  # the process has ended


# `Throttle`: the processes of a session of many busy processes, stopped between its turns.
#
# A fork and the end of a process take kernel locks that all processes need that map the same
# files, and the process that gets a lock needs a processor before the next one can get it. If a
# thousand processes want two processors, each waits for seconds; a low weight makes that worse.
# So the processes of a fork bomb are stopped (SIGSTOP), which takes effect when they leave the
# kernel, where they hold no lock.
#
# A crowd is a session in which many processes want to run; crowds run in turn, and are stopped as
# they grow: twenty fork bombs have a thousand processes within two seconds, beside which the
# watchdog itself gets no processor. A storm (a fork bomb) is a crowd of more processes than there
# are processors that has as many processes as allowed, or keeps forking. More processes do not
# speed up its work, so while other sessions work its turn comes seldom.
#
# Covers: every process of a session except init and init's helpers. Does not cover: processes
# that code outside of the stopped session continues; a process that the session's own code
# stopped meanwhile is continued with the others.

# More processes than these that want to run are a crowd.
CROWD: Final = 8
# More than these may be a storm.
STORM: Final = max(CROWD, os.cpu_count() or 1)
# The number of turns of which a fork bomb has one while other sessions work.
SELDOM: Final = 64
# The number of crowds at a time, such that each process may have a processor of its own.
AT_ONCE: Final = max(1, (os.cpu_count() or 1) // CROWD)
# Observations in a row that must find new processes: a process pool starts only once.
_SURE: Final = 2


class Throttle:
    """The stopped processes of one session."""

    def __init__(self) -> None:
        self._stopped: dict[int, int] = {}  # process id: its start
        self._known: set[tuple[int, int]] = set()  # likewise, all processes of the last observation
        self._floods = 0  # observations in a row that found many new processes
        self.is_crowded = False
        self.is_fork_bomb = False

    def observe(self, processes: Sequence[ProcStat], *, full: bool) -> None:
        """Set `is_crowded` and `is_fork_bomb` by all `processes` of a session.

        `full`: no more can be forked.
        """
        current = {(each.pid, each.began) for each in processes}
        self._stopped = {pid: at for pid, at in self._stopped.items() if (pid, at) in current}
        self._floods = self._floods + 1 if len(current - self._known) > CROWD else 0
        self._known = current
        wanting = sum(each.busy or each.pid in self._stopped for each in processes)
        self.is_crowded = wanting > CROWD
        forks = full or self._floods >= _SURE
        self.is_fork_bomb = wanting > STORM and (forks or bool(self._stopped))

    def stop(self, processes: Iterable[ProcStat]) -> None:
        """Stop the running ones among `processes`."""
        for each in processes:
            if each.busy and _send(each.pid, each.began, signal.SIGSTOP):
                self._stopped[each.pid] = each.began

    def resume(self, pids: Iterable[int]) -> None:
        """Continue the stopped ones among `pids`."""
        for pid in pids:
            if (began := self._stopped.pop(pid, None)) is not None:
                _send(pid, began, signal.SIGCONT)

    def resume_all(self) -> None:
        """Continue all stopped processes."""
        self.resume(list(self._stopped))


def turn(number: int, crowds: int, *, others: bool) -> set[int]:
    """Return the numbers, below `crowds`, of the crowds that run in turn `number`.

    `others`: other sessions work as well, and have every other turn without any crowd.
    """
    if crowds + others <= AT_ONCE:
        return set(range(crowds))
    if others:
        number, is_turn_of_others = divmod(number, 2)
        if is_turn_of_others:
            return set()
    return {(number + place) % crowds for place in range(min(AT_ONCE, crowds))}


def fork_bomb_turn(number: int, bombs: int) -> set[int]:
    """Return the numbers, below `bombs`, of those that run in turn `number` beside other work."""
    place, rest = divmod(number % (SELDOM * max(1, bombs)), SELDOM)
    return set() if rest or not bombs else {place}


def _send(pid: int, began: int, number: signal.Signals) -> bool:
    """Send a signal to the process `pid` with that start, and to no later process of that
    number.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False  # it has ended
    try:
        if proc.began(pid) != began:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False  # it has ended, or is another user's
    finally:
        os.close(process)
    return True


# `SessionShare`: slows down a session without CPU credit, and every fork bomb.
#
# A session that is slowed down has a low weight of contended processors, if it has a cgroup, and
# long slices (`SchedulingPolicy`). Sessions of many busy processes are stopped between their turns
# (`Throttle`).


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
        processes = proc.read_all(pids)
        # Outside of the lock, for which a caller that ends the session waits.
        used = proc.cpu_seconds(processes)
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
                    self._stop(proc.read_all(descendants(self._links[0].pid)))

    def resume(self) -> None:
        """Continue the stopped processes."""
        with self._lock:
            if self.is_stopped and self._links:
                self._resume()

    def _stop(self, processes: Sequence[ProcStat]) -> None:
        code_processes = proc.without_init(processes, self._links[0].pid)
        self._throttle.stop(
            code_process for code_process in code_processes if code_process.pid not in self._workers
        )

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


# `FairScheduler`.
#
# A session is slowed down by its recent use (`SessionShare`). Sessions of many busy processes run
# in turn; fork bombs do so in every sandbox (`Throttle`).

# The number of a round in which no fork bomb runs while other sessions work.
_NO_FORK_BOMBS = -1
# Seconds for which a session that began a cell counts as working.
_OTHERS = 1.0


@dataclass(slots=True)
class _TrackedSession:
    """A session or a branch, and the number of its last cell when it was observed."""

    core: Core
    observed_cell: int
    turn_cell: int = 0  # the same for its turn


class FairScheduler:
    """The scheduler of the sessions of one sandbox; `charged`: they have CPU credit to spend."""

    def __init__(self, *, charged: bool) -> None:
        self._charged = charged
        self._lock = threading.Lock()
        self._sessions: dict[int, _TrackedSession] = {}
        # The branches of a session share one init and one cgroup, and so one entry.
        self._shares: weakref.WeakKeyDictionary[SessionFamily, SessionShare] = (
            weakref.WeakKeyDictionary()
        )
        self._others_until = 0.0  # on the monotonic clock

    def join(self, core: Core) -> None:
        """Add a session or a branch."""
        with self._lock:
            self._sessions[id(core)] = _TrackedSession(core, core.cell)
            new = SessionShare(time.monotonic(), charged=self._charged)
            self._shares.setdefault(core.links.family, new).join(core.links)

    def leave(self, core: Core) -> None:
        """Remove a session or a branch that is about to end."""
        with self._lock:
            known = self._sessions.pop(id(core), None)
            share = self._shares.get(core.links.family)
        if known is not None and share is not None:
            share.leave(core.links)

    def is_stopped(self, core: Core) -> bool:
        """Return whether the session is stopped until its turn."""
        share = self._shares.get(core.links.family)
        return share is not None and share.is_stopped

    def is_busy(self, core: Core) -> bool:
        """Return whether the session has to be observed again soon, although no cell runs."""
        share = self._shares.get(core.links.family)
        return share is not None and share.busy

    def observe(self, core: Core, processes: Sequence[int], *, full: bool) -> None:
        """Observe `processes`, all of the session; `full`: no more can be forked."""
        session, share = self._sessions.get(id(core)), self._shares.get(core.links.family)
        if core.links.baseline.is_remote:
            return  # the limits of its container bound its use of processors
        if session is None or share is None:
            return  # it is about to end
        cell = core.cell
        begun, session.observed_cell = max(0, cell - session.observed_cell), cell
        share.observe(core.links, processes, begun, time.monotonic(), full=full)
        if share.is_fork_bomb and not share.is_stopped:
            # Immediately: the rest of a round takes long beside a fork bomb.
            self.schedule_round(_NO_FORK_BOMBS)

    def schedule_round(self, number: int) -> None:
        """Continue the sessions whose turn it is in round `number`, and stop the others."""
        with self._lock:
            sessions = list(self._sessions.values())
            crowds = [each for each in self._shares.values() if each.throttled]
        if not crowds:
            return
        now = time.monotonic()
        workers: dict[SessionShare, set[int]] = {crowd: set() for crowd in crowds}
        for session in sessions:
            core, share = session.core, self._shares.get(session.core.links.family)
            begun, session.turn_cell = core.cell != session.turn_cell, core.cell
            if share in workers:
                # The worker of a fork bomb continues: its next cell waits for no turn.
                if core.interrupting or share.is_fork_bomb:
                    workers[share].add(core.links.worker_pid)
            elif begun or core.running_since:
                self._others_until = now + _OTHERS
        runs = _running(crowds, number, others=now < self._others_until)
        # Stop the others first.
        for share in crowds:
            if share not in runs:
                share.wait(workers[share])
        for share in runs:
            share.resume()


def _running(crowds: Sequence[SessionShare], number: int, *, others: bool) -> set[SessionShare]:
    """Return the entries of `crowds` whose turn is `number`."""
    bombs = [crowd for crowd in crowds if others and crowd.is_fork_bomb]
    crowds = [crowd for crowd in crowds if crowd not in bombs]
    chosen = turn(number, len(crowds), others=others) if crowds else ()
    runs = {crowds[place] for place in chosen}
    return runs | {bombs[place] for place in fork_bomb_turn(number, len(bombs))}

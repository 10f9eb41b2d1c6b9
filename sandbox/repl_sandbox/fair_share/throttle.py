"""`Throttle`: the processes of a session of many busy processes, stopped between its turns.

A fork and the end of a process take kernel locks that all processes need that map the same files,
and the process that gets a lock needs a processor before the next one can get it. If a thousand
processes want two processors, each waits for seconds; a low weight makes that worse. So the
processes of a fork bomb are stopped (SIGSTOP), which takes effect when they leave the kernel, where
they hold no lock.

A crowd is a session in which many processes want to run; crowds run in turn, and are stopped as
they grow: twenty fork bombs have a thousand processes within two seconds, beside which the watchdog
itself gets no processor. A storm (a fork bomb) is a crowd of more processes than there are
processors that has as many processes as allowed, or keeps forking. More processes do not speed up
its work, so while other sessions work its turn comes seldom.

Covers: every process of a session except init and init's helpers. Does not cover: processes that
code outside of the stopped session continues; a process that the session's own code stopped
meanwhile is continued with the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from ..limits import proc_stat
from ..limits.proc_stat import ProcStat

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
        if proc_stat.began(pid) != began:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False  # it has ended, or is another user's
    finally:
        os.close(process)
    return True

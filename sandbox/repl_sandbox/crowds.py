"""`Crowd`: the processes of a session in which many want to run, stopped between its turns.

A fork and the end of a process take locks of the kernel for which all wait that map the same files,
and whoever gets one has to have a processor before the next can. Where a thousand processes want
two processors, each waits for seconds; weights make it worse. So of the sessions in which many
processes want to run only some do at once. The others are stopped (SIGSTOP), which happens where
a process holds no lock: on its way out of the kernel.

A storm is a crowd of more processes than there are processors that holds as many as its session may
have, or goes on forking. It does no work that waits for a processor, so while others work its turn
comes seldom.

Covers: every process of a session but its init and what that does itself. Does not cover: what code
outside of the stopped session continues, and what the code has stopped itself meanwhile, which goes
on with the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from . import seen
from .seen import Seen

# So many processes that run or wait for the kernel are a crowd.
CROWD: Final = 8
# So many are one that may be a storm.
STORM: Final = max(CROWD, os.cpu_count() or 1)
# Of so many turns a storm has one while others work.
SELDOM: Final = 64
# Of so many crowds each process may have a processor of its own.
AT_ONCE: Final = max(1, (os.cpu_count() or 1) // CROWD)


class Crowd:
    """The stopped processes of one session."""

    def __init__(self) -> None:
        self._stopped: dict[int, int] = {}  # process id: when it began
        self._known: set[tuple[int, int]] = set()  # likewise, all that were seen last
        self._floods = 0  # looks in a row that found many which are new

    def count(self, processes: Sequence[Seen]) -> int:
        """How many of `processes`, all that the session has, are stopped or run."""
        ours = {each.pid: each.began for each in processes}.items() & self._stopped.items()
        self._stopped = dict(ours)
        return sum(each.crowds or each.pid in self._stopped for each in processes)

    def storms(self, processes: Sequence[Seen], *, full: bool) -> bool:
        """Whether it is a storm, after `count`; `full`: as many as may be, are there."""
        there = {(each.pid, each.began) for each in processes}
        self._floods = self._floods + 1 if len(there - self._known) > CROWD else 0
        self._known = there
        wanting = sum(each.crowds or each.pid in self._stopped for each in processes)
        return wanting > STORM and (full or self._floods >= _SURE or bool(self._stopped))

    def stop(self, processes: Sequence[Seen]) -> None:
        """Stop those of `processes` that run."""
        for each in processes:
            if each.crowds and _send(each.pid, each.began, _STOP):
                self._stopped[each.pid] = each.began

    def go_on(self, pids: Iterable[int]) -> None:
        """Continue those of `pids` that were stopped."""
        for pid in pids:
            if (began := self._stopped.pop(pid, None)) is not None:
                _send(pid, began, _CONTINUE)

    def go_on_all(self) -> None:
        """Continue all that were stopped."""
        self.go_on(list(self._stopped))


def turn(number: int, crowds: int, *, others: bool) -> set[int]:
    """Which of so many crowds run in turn `number`.

    `others`: somebody else works as well, and has every other turn without any of them.
    """
    if crowds + others <= AT_ONCE:
        return set(range(crowds))
    if others:
        number, theirs = divmod(number, 2)
        if theirs:
            return set()
    return {(number + place) % crowds for place in range(min(AT_ONCE, crowds))}


def seldom(number: int, storms: int) -> set[int]:
    """Which of so many storms run in turn `number` while others work."""
    place, rest = divmod(number % (SELDOM * max(1, storms)), SELDOM)
    return set() if rest or not storms else {place}


# Looks that must agree that processes are forked all the time: a pool of them starts but once.
_SURE: Final = 2
_STOP: Final = signal.SIGSTOP
_CONTINUE: Final = signal.SIGCONT


def _send(pid: int, began: int, number: signal.Signals) -> bool:
    """Send a signal to the process `pid` that began then, and to no later one of that number."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False  # it has ended
    try:
        if seen.began(pid) != began:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False  # it has ended, or is another user's
    finally:
        os.close(process)
    return True

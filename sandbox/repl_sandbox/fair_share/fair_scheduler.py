"""`FairScheduler`: how the sessions of one sandbox share the processors.

A session is slowed down by its recent use (`session_share.py`). Sessions of many busy processes run
in turn; fork bombs do so in every sandbox (`throttle.py`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from ..session.core import Core
from ..zygote.client.session_links import SessionFamily
from .session_share import SessionShare
from .throttle import fork_bomb_turn, turn

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
        workers: dict[SessionShare, set[int]] = {each: set() for each in crowds}
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
    bombs = [each for each in crowds if others and each.is_fork_bomb]
    crowds = [each for each in crowds if each not in bombs]
    chosen = turn(number, len(crowds), others=others) if crowds else ()
    runs = {crowds[place] for place in chosen}
    return runs | {bombs[place] for place in fork_bomb_turn(number, len(bombs))}

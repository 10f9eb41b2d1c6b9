"""`Turns`: how the sessions of one sandbox give way, to one another and to all else.

Each yields by what it used lately (`yielding.py`). Of those in which many processes want to run,
which no weight helps the others against, only some run at once, in turn; storms among them give way
in every sandbox (`crowds.py`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from .crowds import seldom, turn
from .session.core import Core
from .weights import Weights
from .yielding import Yielding
from .zygote.links import Family

# A round in which no storm has its turn.
_NO_STORMS_TURN = -1
# Seconds for which somebody who began a cell is counted among those who work.
_OTHERS = 1.0


@dataclass(slots=True)
class _Line:
    """One line of a session, and the last cell that was begun before it was looked at."""

    core: Core
    looked: int
    turned: int = 0  # the same for its turn


class Turns:
    """Those of the sessions whose template is this process; `yielding`: not of storms alone."""

    def __init__(self, template: int, *, yielding: bool) -> None:
        self._weights = Weights(template) if yielding else None
        self._lock = threading.Lock()
        self._lines: dict[int, _Line] = {}
        # Branches of a session are one with it: they have one init, and one group.
        self._yieldings: weakref.WeakKeyDictionary[Family, Yielding] = weakref.WeakKeyDictionary()
        self._others_until = 0.0  # on the monotonic clock

    def join(self, core: Core) -> None:
        """One line more."""
        with self._lock:
            self._lines[id(core)] = _Line(core, core.cell)
            new = Yielding(self._weights, time.monotonic())
            self._yieldings.setdefault(core.links.family, new).join(core.links)

    def leave(self, core: Core) -> None:
        """One line less: it is about to end."""
        with self._lock:
            known = self._lines.pop(id(core), None)
            yielding = self._yieldings.get(core.links.family)
        if known is not None and yielding is not None:
            yielding.leave(core.links)

    def waits(self, core: Core) -> bool:
        """Whether the session waits for its turn."""
        yielding = self._yieldings.get(core.links.family)
        return yielding is not None and yielding.waits

    def weighs(self, core: Core) -> bool:
        """Whether the session has to be looked at soon again, although no cell runs."""
        yielding = self._yieldings.get(core.links.family)
        return yielding is not None and yielding.busy

    def look(self, core: Core, processes: Sequence[int], *, full: bool) -> None:
        """See what `processes`, all that the session has, have used; `full`: no more may be."""
        line, yielding = self._lines.get(id(core)), self._yieldings.get(core.links.family)
        if core.links.outside.is_apart:
            return  # what holds its processor is its container's limit
        if line is None or yielding is None:
            return  # it is about to end
        cell = core.cell
        begun, line.looked = max(0, cell - line.looked), cell
        yielding.look(core.links, processes, begun, time.monotonic(), full=full)
        if yielding.storms and not yielding.waits:
            # At once: the rest of a round takes long beside a storm.
            self.take(_NO_STORMS_TURN)

    def take(self, number: int) -> None:
        """Let those go on whose turn it is in round `number`, and the other crowds wait."""
        with self._lock:
            lines = list(self._lines.values())
            crowds = [each for each in self._yieldings.values() if each.crowded]
        if not crowds:
            return
        now = time.monotonic()
        hear: dict[Yielding, set[int]] = {each: set() for each in crowds}
        for line in lines:
            core, yielding = line.core, self._yieldings.get(line.core.links.family)
            begun, line.turned = core.cell != line.turned, core.cell
            if yielding in hear:
                # The worker of a storm goes on: what is next asked of it waits for no turn.
                if core.interrupting or yielding.storms:
                    hear[yielding].add(core.links.worker_pid)
            elif begun or core.running_since:
                self._others_until = now + _OTHERS
        for each in self._waiting(crowds, number, others=now < self._others_until):
            each.wait(hear[each])
            del hear[each]
        for each in hear:
            each.go_on()

    def _waiting(self, crowds: list[Yielding], number: int, *, others: bool) -> list[Yielding]:
        """Those of `crowds` whose turn `number` is not."""
        storms = [each for each in crowds if others and each.storms]
        crowds = [each for each in crowds if each not in storms]
        runs = (
            {crowds[place] for place in turn(number, len(crowds), others=others)}
            if crowds
            else set()
        )
        runs |= {storms[place] for place in seldom(number, len(storms))}
        return [each for each in (*crowds, *storms) if each not in runs]

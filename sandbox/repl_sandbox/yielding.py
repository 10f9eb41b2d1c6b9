"""`Yielding`: a session that has no precedence gives way, and a storm of processes always does.

By whatever weighs its processes here, and by long slices (`slices.py`); many that run are also
stopped now and then (`crowds.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

from . import seen
from .crowds import CROWD, Crowd
from .jail.processes import descendants
from .precedence import Precedence
from .seen import Seen
from .slices import Slices
from .weights import Weights
from .zygote.links import Links


class Yielding:
    """One session's, its branches among it; begins at `now`, on the monotonic clock.

    Without `weights` nothing but storms gives way.
    """

    def __init__(self, weights: Weights | None, now: float) -> None:
        self._weights, self._slices = weights, Slices()
        self._precedence = Precedence(now)
        self._lock = threading.Lock()
        self._links: list[Links] = []  # of its lines
        self._crowd = Crowd()
        self.waits = False  # for its turn
        self._hear: Collection[int] = ()  # workers that run meanwhile
        self._lowered = False  # ever
        self._settled = True  # whether all processes were found to be as they should
        self.low = False
        self.crowded = False  # many of its processes want to run: it does in turn with others
        self.storms = False  # as `crowds.py` has it

    @property
    def busy(self) -> bool:
        """Whether it has to be looked at soon again, although no cell runs."""
        return self.low or self.crowded or not self._settled

    def join(self, links: Links) -> None:
        """One line more is watched."""
        with self._lock:
            self._links.append(links)

    def leave(self, links: Links) -> None:
        """One line less: it is about to end, at its ordinary weight.

        Whoever ends it waits for its processes, and others for whoever does.
        """
        with self._lock:
            self._links.remove(links)
            if self.low:
                self._weigh(links, seen.look(descendants(links.pid)), low=False)
            if not self._links:  # what ends has no turn any more, and dies stopped as well
                self.crowded = self.storms = self.waits = False

    def look(
        self, links: Links, pids: Sequence[int], cells: int, now: float, *, full: bool
    ) -> None:
        """See what `pids`, all that the session has, have used, and weigh them by that.

        `cells`: how many were begun since the last look. `full`: whether no more may be forked.
        """
        if self._weights is None and len(pids) <= CROWD and not self.crowded:
            return
        processes = seen.look(pids)
        # Outside of the lock, for which whoever ends the session waits.
        used = seen.cpu_seconds(processes)
        wants = self._weights is not None and any(each.wants for each in processes)
        with self._lock:
            if not self._links:
                return
            if self._weights is not None:
                held = self._precedence.look(used, cells, now, wants=wants)
                self._lower(links, processes, held=held)
            crowds = self._crowd.count(processes) > CROWD
            self.storms = self._crowd.storms(processes, full=full)
            self.crowded = self.storms or (crowds and self._weights is not None)
            if not self.crowded:
                self._go_on()
            elif self.waits:
                self._stop(processes)

    def _lower(self, links: Links, processes: Sequence[Seen], *, held: bool) -> None:
        """Lower or raise them, by whether precedence is `held`."""
        # One that is lowered while it holds a lock of the kernel holds it for long.
        low = not held and sum(each.crowds for each in processes) <= CROWD
        # Without a group new processes may have come: in autogroups of their own or, from a
        # fork that took its time, with the nice value that its parent had before.
        again = self._lowered and not _weighed(links)
        if low != self.low or again:
            self._weigh(links, processes, low=low)
        if low:
            self._slices.lengthen(links.pid, processes)
        else:
            self._slices.reset(processes)

    def wait(self, hear: Collection[int] = ()) -> None:
        """Stop, for it is the turn of others; but not the workers `hear`."""
        with self._lock:
            if self.crowded and self._links:
                self._hear = hear
                self._crowd.go_on(hear)
                if not self.waits:
                    self.waits = True
                    self._stop(seen.look(descendants(self._links[0].pid)))

    def go_on(self) -> None:
        """Run again, at its ordinary weight."""
        with self._lock:
            if self.waits and self._links:
                links = self._links[0]
                if self.low:
                    self._weigh(links, seen.look(descendants(links.pid)), low=False)
                self._go_on()

    def _stop(self, processes: Sequence[Seen]) -> None:
        theirs = seen.theirs(processes, self._links[0].pid)
        self._crowd.stop([each for each in theirs if each.pid not in self._hear])

    def _go_on(self) -> None:
        self._crowd.go_on_all()
        self.waits = False

    def _weigh(self, links: Links, processes: Sequence[Seen], *, low: bool) -> None:
        group = links.group
        if group is not None and group.weighed:
            with suppress(OSError):  # the session has ended, or somebody removed its group
                group.weigh(low=low)
        elif self._weights is not None:
            self._settled = self._weights.weigh(links.pid, processes, low=low)
        self.low = low
        self._lowered = self._lowered or low


def _weighed(links: Links) -> bool:
    return links.group is not None and links.group.weighed

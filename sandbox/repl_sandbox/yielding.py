"""`Yielding`: a session that has no precedence gives way, by whatever weighs its processes here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from . import seen
from .jail.processes import descendants
from .precedence import Precedence
from .seen import Seen
from .weights import Weights
from .zygote.handle import Links

# So many processes that run or wait for the kernel are no longer lowered. They may be a fork bomb;
# a fork holds locks that every fork on the machine waits for, and who has a hundredth of a
# processor between seventy holds them for seconds. They have one session's share together anyway.
_CROWD: Final = 8


class Yielding:
    """One session's, its branches among it; begins at `now`, on the monotonic clock."""

    def __init__(self, weights: Weights, now: float) -> None:
        self._weights = weights
        self._precedence = Precedence(now)
        self._lock = threading.Lock()
        self._lines = 0
        self._settled = True  # whether all processes are known to be as they should
        self.low = False

    @property
    def busy(self) -> bool:
        """Whether it has to be looked at soon again, although no cell runs."""
        return self.low or not self._settled

    def join(self) -> None:
        """One line more is watched."""
        with self._lock:
            self._lines += 1

    def leave(self, links: Links) -> None:
        """One line less: it is about to end, at its ordinary weight.

        Whoever ends it waits for its processes, and others for whoever does.
        """
        with self._lock:
            self._lines -= 1
            if self.low:
                self._weigh(links, seen.look(descendants(links.pid)), low=False)

    def look(self, links: Links, pids: Sequence[int], cells: int, now: float) -> None:
        """See what `pids`, all that the session has, have used, and weigh them by that.

        `cells`: how many were begun since the last look.
        """
        if not (_weighed(links) or self._weights):
            return
        processes = seen.look(pids)
        used, wants = seen.cpu_seconds(processes), any(each.wants for each in processes)
        with self._lock:
            if not self._lines:
                return
            held = self._precedence.look(used, cells, now, wants=wants)
            low = not held and sum(each.crowds for each in processes) <= _CROWD
            # Without a group new processes may have come, in autogroups of their own.
            if low != self.low or not self._settled or (low and not _weighed(links)):
                self._weigh(links, processes, low=low)

    def _weigh(self, links: Links, processes: Sequence[Seen], *, low: bool) -> None:
        group = links.group
        if group is not None and group.weighed:
            with suppress(OSError):  # the session has ended, or somebody removed its group
                group.weigh(low=low)
        else:
            self._settled = self._weights.weigh(links.pid, processes, low=low)
        self.low = low


def _weighed(links: Links) -> bool:
    return links.group is not None and links.group.weighed

"""What lowers the share of the processor of processes that no group of the session's own holds.

Covers: autogroups (sched(7)), one for each setsid(2), which the kernel weighs as a whole where it
has them; nice values, which count where it has not, and among the processes of one cgroup. Which of
the two counts cannot be seen from here (an autogroup is shown also for processes in a cgroup, where
it means nothing), so both are set. Does not cover: groups of cgroups.

Nothing is lowered that could not be raised again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Final

from .seen import Seen, theirs

# The most that there is: 15 of the 1,024 that an ordinary process has.
LOW: Final = 19
# What each setsid(2) gives an autogroup.
_ORDINARY_AUTOGROUP: Final = 0


class Weights:
    """Those of the sessions of one template, whose process is `template`."""

    def __init__(self, template: int) -> None:
        self._ordinary = os.getpriority(os.PRIO_PROCESS, template)
        self.autogroups = os.path.exists("/proc/self/autogroup")
        self.nices = _can_come_back()

    def __bool__(self) -> bool:
        return self.autogroups or self.nices

    def weigh(self, init: int, processes: Sequence[Seen], *, low: bool) -> bool:
        """Lower or raise `processes`, all of a session but its `init` and what that does itself.

        Whether all were so already. If not, others may have been forked meanwhile as they were.
        """
        found = theirs(processes, init)
        if self.nices:
            nice = LOW if low else self._ordinary
            # By process groups: that call reaches every thread of every process in it.
            others = {seen.group for seen in found if seen.nice != nice}
            for group in others:
                self._renice(group, nice)
        else:
            others = set()
        # Any process of an autogroup stands for it.
        pids = {seen.session: seen.pid for seen in found}.values() if self.autogroups else ()
        right = [self._regroup(pid, LOW if low else _ORDINARY_AUTOGROUP) for pid in pids]
        return not others and all(right)

    def _renice(self, group: int, nice: int) -> None:
        try:
            os.setpriority(os.PRIO_PGRP, group, nice)
        except PermissionError:
            self.nices = False  # of other users, whom this process may not touch
        except ProcessLookupError:
            pass

    def _regroup(self, pid: int, nice: int) -> bool:
        """Whether there was nothing to do."""
        path = f"/proc/{pid}/autogroup"
        try:
            with open(path, "rb", buffering=0) as file:
                if int(file.read().rpartition(b" ")[2]) == nice:
                    return True
            with open(path, "wb", buffering=0) as file:
                file.write(b"%d" % nice)
        except PermissionError:
            self.autogroups = False
        except (ValueError, OSError) as error:
            # It has ended; or others have just done the same, for which an ordinary user has to
            # wait a tenth of a second: the next look is soon.
            if isinstance(error, OSError) and error.errno not in _PASSING:
                self.autogroups = False
        return False


_PASSING: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EAGAIN})


def _can_come_back() -> bool:
    """Whether this process may raise what it has lowered: tried in a thread that ends with it.

    By RLIMIT_NICE, which sessions inherit, or CAP_SYS_NICE.
    """
    came: list[bool] = []

    def try_it() -> None:
        mine = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, mine)
        try:
            os.setpriority(os.PRIO_PROCESS, mine, nice + 1)
            os.setpriority(os.PRIO_PROCESS, mine, nice)
            came.append(nice < LOW)
        except OSError:
            came.append(False)

    thread = threading.Thread(target=try_it, name="repl-nice")
    thread.start()
    thread.join()
    return came == [True]

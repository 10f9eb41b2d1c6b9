"""What a process of a session may never do again, and when it must die.

Covers: gaining privileges by exec, outliving its parent, being inspected by others of its uid,
sharing a process group with what is not of the session.
Does not cover: inspection by the session's own code of itself, which is its right.
"""

from __future__ import annotations

import os
import signal

from . import libc


def forbid_new_privileges() -> None:
    """PR_SET_NO_NEW_PRIVS: no exec gains anything, and seccomp filters may be loaded."""
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG: SIGKILL when the parent goes. A change of credentials clears it."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_group() -> None:
    """Own session and process group, setsid(2), without a terminal."""
    os.setsid()


def hide_memory() -> None:
    """PR_SET_DUMPABLE 0: no ptrace, no /proc/PID/mem, no core, for whoever has the same uid."""
    libc.prctl(libc.PR_SET_DUMPABLE, 0)


def keep_descriptors(kept: set[int]) -> None:
    """Close every descriptor but those of `kept`."""
    start = 0
    for fd in sorted(kept):
        if fd > start:
            libc.close_range(start, fd - 1)
        start = fd + 1
    libc.close_range(start, _LAST_DESCRIPTOR)


# close_range(2) takes an unsigned int; this is the largest.
_LAST_DESCRIPTOR = 0xFFFF_FFFF


def thread_count() -> int:
    """How many threads this process has, those of C libraries too."""
    return os.stat("/proc/self/task").st_nlink - 2

"""What a session's processes do about their group: join it, and be the first to go.

Covers: joining through descriptors that the host opened, so that no path of the hierarchy is in
view; a view of the hierarchy that begins at the session's group; whom the kernel ends when memory
runs out. Does not cover: limits and counts (cgroups), which are the host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import libc

# proc_pid_oom_score_adj(5), and the largest of what is written there, which outweighs any size.
OOM_SCORE = "/proc/self/oom_score_adj"
FIRST_TO_GO = b"1000"


def join(groups: Iterable[int]) -> None:
    """Move this process, which has one thread, into the group of each descriptor.

    On version 2 there is none: the process was born into its group.
    """
    for fd in groups:
        os.write(fd, b"0")


def close_view() -> None:
    """Take a cgroup namespace: it begins at the group that this process is in.

    What is above it, the host's groups and the process id in their names, is then out of view.
    """
    libc.unshare(libc.CLONE_NEWCGROUP)


def be_first_to_go() -> None:
    """Have this process and all it starts ended before init when their group runs out of memory."""
    # The file belongs to nobody here while the process hides its memory; it does so again before
    # any code runs.
    libc.prctl(libc.PR_SET_DUMPABLE, 1)
    fd = os.open(OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, FIRST_TO_GO)
    finally:
        os.close(fd)

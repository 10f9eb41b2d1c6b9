"""Capabilities to zero: effective, permitted, inheritable, ambient and the bounding set.

Covers: what a process may do as "root" of its namespaces, now and after any exec.
Does not cover: what any user may do (seccomp, mounts).
"""

from __future__ import annotations

from contextlib import suppress

from . import libc
from .calls import Calls, Numbered


def last_capability() -> int:
    """The highest capability this kernel knows; asked of it, for /proc may show processes only."""
    last = 0
    while libc.knows_capability(last + 1):
        last += 1
    return last


def empty_bounding_set(last: int) -> None:
    """No exec below this process may gain a capability, up to number `last`."""
    libc.empty_bounding_set(last)


# Give up every capability that this process holds: ambient, then effective, permitted, inheritable.
DROP_ALL = Calls(
    (
        ("prctl", libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
        ("capset", libc.CAP_HEADER, libc.CAP_NONE),
    )
)

_DROP_SETS = Calls((("capset", libc.CAP_HEADER, libc.CAP_NONE),))


def drop_alone(session: Numbered) -> None:
    """The same on a kernel that may have no ambient set."""
    with suppress(OSError):
        libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
    _DROP_SETS(session)

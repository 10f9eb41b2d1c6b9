"""Capabilities set to zero: effective, permitted, inheritable, ambient and the bounding set.

Covers: rights of a process as "root" of its namespaces, now and after any exec. Does not cover:
rights of every user (seccomp, mounts).
"""

from __future__ import annotations

import struct
from typing import Final

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows

# capset(2), struct __user_cap_header_struct of this process, and twice __user_cap_data_struct: none
# effective, permitted or inheritable.
_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_HEADER: Final = struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0)
_NONE: Final = bytes(2 * 3 * 4)


def last_capability() -> int:
    """Return the highest capability of this kernel. Tried: /proc may show processes only."""
    last = 0
    while libc.knows_capability(last + 1):
        last += 1
    return last


def empty_bounding_set_rows(last: int) -> Rows:
    """Return the rows after which no exec gains a capability, up to number `last`."""
    for capability in range(last + 1):
        yield call("prctl", libc.PR_CAPBSET_DROP, capability)


def drop_all_rows(tolerated: tuple[int, ...] = ()) -> Rows:
    """Return the rows that drop every capability of this process: ambient, then the other sets.

    `tolerated`: errnos of a kernel without an ambient set.
    """
    clear_ambient = libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL
    yield call("prctl", *clear_ambient, tolerated=tolerated)
    yield call("capset", _HEADER, _NONE)

"""Numbers of the descriptors that a session's processes have for the engine.

The same in every session: init and the first worker begin with them, whatever numbers they have in
the zygote. They lie above what code is likely to close in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

STREAMS: Final = (0, 1, 2)

FIRST: Final = 900
ORDERS_THEIRS: Final = FIRST  # of workers and copies, to init
ORDERS_OURS: Final = 901  # of init, to them
CONTROL: Final = 902  # of init, to the host
MAPPED: Final = 903  # a pipe that brings a word for each process that waits for the id maps
CONTAINED: Final = 904  # a pipe that brings a word when init has taken all its steps
DONE: Final = 905  # its other end
WORKER: Final = 1000  # of the worker, to the host

# So many a process has to be allowed to open; 1024 is the default of Linux.
LEAST_FILES: Final = WORKER + 24

# No descriptor is larger. More, which close_range(2) of Linux takes too, other kernels refuse.
LAST: Final = 0x7FFF_FFFF


def gaps(kept: set[int]) -> Iterator[tuple[int, int]]:
    """First and last of what lies below, between and above the descriptors `kept`."""
    start = 0
    for fd in sorted(kept):
        if fd > start:
            yield start, fd - 1
        start = fd + 1
    yield start, LAST

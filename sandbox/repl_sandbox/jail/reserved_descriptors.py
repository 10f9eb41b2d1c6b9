"""Numbers of the descriptors that a session's processes reserve for the engine.

The same in every session: init and the first worker begin with them, whatever their numbers in the
zygote. They lie above the numbers that code is likely to close in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

STREAMS: Final = (0, 1, 2)

FIRST: Final = 900
CHANNEL_WORKER_END: Final = FIRST  # of workers and snapshots, to init
CHANNEL_INIT_END: Final = 901  # of init, to workers and snapshots
CONTROL: Final = 902  # of init, to the host
MAPPED: Final = 903  # a pipe with a word for each process that waits for the id maps
CONTAINED: Final = 904  # a pipe with a word when init has taken all its steps
DONE: Final = 905  # its other end
WORKER: Final = 1000  # of the worker, to the host

# Descriptors that a process must be allowed to open; 1024 is the default of Linux.
MIN_FILES: Final = WORKER + 24

# The largest descriptor. close_range(2) of Linux accepts larger numbers, other kernels refuse them.
LAST: Final = 0x7FFF_FFFF


def gaps(descriptors: set[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of the ranges below, between and above `descriptors`."""
    start = 0
    for fd in sorted(descriptors):
        if fd > start:
            yield start, fd - 1
        start = fd + 1
    yield start, LAST

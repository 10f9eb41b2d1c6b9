"""What of the file system the code of a session may use, by tier: path, rights, reason.

This table is the policy; `landlock` makes a ruleset of it. What no row gives is refused: devices
and their commands, and everything else that is not there to be read.
"""

from __future__ import annotations

from typing import Final

from .landlock import Files, Grant

READ: Final = Files.READ_FILE | Files.READ_DIR
RUN: Final = READ | Files.EXECUTE
WRITE: Final = Files.WRITE_FILE | Files.TRUNCATE
OWN: Final = (
    RUN
    | WRITE
    | Files.REMOVE_DIR
    | Files.REMOVE_FILE
    | Files.MAKE_DIR
    | Files.MAKE_REG
    | Files.MAKE_SOCK
    | Files.MAKE_FIFO
    | Files.MAKE_SYM
    | Files.REFER
)

# Everybody may write it by its permissions, and no row of any tier lets a session do so: opening it
# shows whether the ruleset is in force.
TRIAL: Final = "/dev/random"

_DEVICES: Final = (
    Grant("/dev/null", READ | WRITE, "output that nobody wants"),
    Grant("/dev/zero", READ | WRITE, "memory shared with children, by old programs"),
    Grant("/dev/full", READ | WRITE, "programs test by it that they notice a full disk"),
)

# The view holds nothing that is not meant for the session, so all of it can be read. It is mounted
# read-only, and this says so once more; /proc, where the view cannot, is not written either.
JAILED: Final[tuple[Grant, ...]] = (
    Grant("/", RUN, "the view, which has been made for the session"),
    Grant("/tmp", OWN, "the session's own"),
    Grant("/workspace", OWN, "the session's own"),
    Grant("/dev/shm", OWN, "the session's own; semaphores of multiprocessing"),
    *_DEVICES,
)

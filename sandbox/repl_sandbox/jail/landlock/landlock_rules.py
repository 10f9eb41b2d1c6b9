"""File system rights of a session's code, by tier: path, rights, reason.

This table is the policy; `ruleset` makes a ruleset of it. Anything without a row is refused:
devices and their commands, and everything else that is not there to be read.
"""

from __future__ import annotations

from typing import Final

from .ruleset import FileAccess, Grant

READ: Final = FileAccess.READ_FILE | FileAccess.READ_DIR
RUN: Final = READ | FileAccess.EXECUTE
WRITE: Final = FileAccess.WRITE_FILE | FileAccess.TRUNCATE
OWN: Final = (
    RUN
    | WRITE
    | FileAccess.REMOVE_DIR
    | FileAccess.REMOVE_FILE
    | FileAccess.MAKE_DIR
    | FileAccess.MAKE_REG
    | FileAccess.MAKE_SOCK
    | FileAccess.MAKE_FIFO
    | FileAccess.MAKE_SYM
    | FileAccess.REFER
)

# Its permissions let everybody write it, and no row of any tier lets a session do so: opening it
# shows whether the ruleset is in force.
TRIAL: Final = "/dev/random"

_DEVICES: Final = (
    Grant("/dev/null", READ | WRITE, "output that is discarded"),
    Grant("/dev/zero", READ | WRITE, "memory shared with children, by old programs"),
    Grant("/dev/full", READ | WRITE, "programs test by it that they notice a full disk"),
)

# The view holds only files that are meant for the session, so all of it can be read. It is mounted
# read-only, and this row repeats that; /proc, which the view cannot protect, is not writable
# either.
JAILED: Final[tuple[Grant, ...]] = (
    Grant("/", RUN, "the view, which has been made for the session"),
    Grant("/tmp", OWN, "the session's own"),
    Grant("/workspace", OWN, "the session's own"),
    Grant("/dev/shm", OWN, "the session's own; semaphores of multiprocessing"),
    *_DEVICES,
)

# There is no view here, so every path is one of the host's, and a path without a row does not open.
# The template adds the interpreter, its libraries and the operator's mounts.
CONFINED: Final[tuple[Grant, ...]] = (
    Grant("/usr", RUN, "programs and libraries of the system"),
    Grant("/bin", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/sbin", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib32", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib64", RUN, "the dynamic loader", optional=True),
    Grant("/etc/ld.so.cache", READ, "the dynamic loader", optional=True),
    Grant("/etc/alternatives", READ, "links to libraries on Debian: BLAS", optional=True),
    Grant("/etc/fonts", READ, "fontconfig, matplotlib", optional=True),
    Grant("/etc/matplotlibrc", READ, "matplotlib", optional=True),
    Grant("/etc/localtime", READ, "the C library: the time zone", optional=True),
    Grant("/etc/mime.types", READ, "mimetypes", optional=True),
    Grant("/proc/cpuinfo", READ, "BLAS and torch choose code for the processor", optional=True),
    Grant("/proc/meminfo", READ, "how much memory there is", optional=True),
    Grant("/proc/stat", READ, "the C library counts processors", optional=True),
    # Of the worker alone, because its children have other numbers; and not the whole directory,
    # because `mounts` and `net` are the host's.
    Grant("/proc/self/status", READ, "own memory, threads"),
    Grant("/proc/self/stat", READ, "own usage"),
    Grant("/proc/self/statm", READ, "own memory"),
    Grant("/proc/self/maps", READ, "own mappings: C libraries, debuggers"),
    Grant("/proc/self/smaps_rollup", READ, "own memory, exactly", optional=True),
    Grant("/proc/self/fd", READ, "own descriptors: subprocess closes them by this list"),
    Grant("/sys/devices/system/cpu", READ, "how many processors there are", optional=True),
    Grant("/sys/devices/system/node", READ, "how memory is divided", optional=True),
    Grant("/sys/kernel/mm/transparent_hugepage", READ, "memory allocators, numpy", optional=True),
    *_DEVICES,
    Grant("/dev/random", READ, "random numbers"),
    Grant("/dev/urandom", READ, "random numbers"),
)

"""Forks that the standard library has not: without hooks, and beside the caller.

CPython's own, `os.fork`, runs what `os.register_at_fork` was told, and makes children only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from _signal import SIGCHLD, SIGKILL  # plain numbers, which the public module's are not
from typing import Final

from . import spawn
from .libc import CLONE_PARENT, check

# Bytes; more than struct sigaction has in any C library.
_SIGACTION_SIZE: Final = 256
# Waits of so many milliseconds, in which a fork of a fork is made, also of gigabytes. They are not
# one: when this process is not run for seconds, the other may not be either, and that counts once.
_WAIT_BETWEEN: Final = 200
_MOST_WAITS: Final = 10

# PyDLL keeps the GIL held: a fork through it leaves the child with the interpreter's lock.
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
# Looked up here, once: in a forked process the search through all libraries copies some 60 pages.
_fork = _libc_with_gil.fork


def fork() -> int:
    """fork(3) for a process with one thread, without CPython's hooks.

    These repair what other threads may hold; there are none, and running them costs half a
    millisecond of copied pages. The GIL stays with the caller, whose thread keeps its identity in
    the child.
    """
    return check(_fork(), "fork")


def fork_beside() -> int:
    """clone(2) as a fork whose child is the caller's sibling; 0 in the child.

    Its parent is the caller's, who reaps it: the caller's own waits never meet it. For a process
    with one thread, as `fork`.
    """
    return spawn.fork_process(CLONE_PARENT)


def makes_siblings() -> bool:
    """Whether `fork_beside` makes siblings: a kernel may take the flag, and make children.

    Tried; this process must have no child whose end it has to hear of.
    """
    between = fork()
    if between == 0:
        other = fork_beside()
        if other == 0:
            os._exit(0)
        try:
            os.waitpid(other, 0)
        except ChildProcessError:
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
        return False
    os.wait()
    return True


def fork_beside_threads() -> int:
    """As `fork_beside`, for a process with other threads; the child has the caller's alone.

    What these threads hold of the C library and of CPython is repaired by fork(3) and by CPython's
    hooks, those of os.register_at_fork among them. fork(3) makes only children, so one is made that
    makes another and ends: that one goes to whoever adopts the orphans of this session, its init.
    Of the end of the one between no handler hears, in whichever thread.
    """
    handled = ctypes.create_string_buffer(_SIGACTION_SIZE)
    quiet = ctypes.create_string_buffer(_SIGACTION_SIZE)  # all zero: SIG_DFL
    _libc_with_gil.sigaction(SIGCHLD, quiet, handled)
    had_ended = _has_ended()
    try:
        pid = _fork_by_another()
    finally:
        _libc_with_gil.sigaction(SIGCHLD, handled, None)
    if pid and not had_ended and _has_ended():
        os.kill(os.getpid(), SIGCHLD)  # of a child of the code's that nobody was told of
    return pid


def _has_ended() -> bool:
    """Whether a child waits to be waited for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _fork_by_another() -> int:
    hooks = ctypes.pythonapi
    reading, writing = os.pipe2(os.O_CLOEXEC)
    hooks.PyOS_BeforeFork()
    between = _fork()
    if between == 0:
        hooks.PyOS_AfterFork_Child()
        child = _fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(child).encode())
        os._exit(0)
    hooks.PyOS_AfterFork_Parent()
    os.close(writing)
    try:
        check(between, "fork")
        answer = _said(reading)
        if answer is None:
            # Held up by a hook of the code's, or by a lock of a C library that a thread held.
            os.kill(between, SIGKILL)
        os.waitpid(between, 0)
    finally:
        os.close(reading)
    if answer is None or answer == -1:
        raise OSError(errno.EAGAIN, "fork: no room for a second one, or no end of the first")
    return answer


def _said(reading: int) -> int | None:
    """The number that comes by a pipe; None if none does in time."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    for _ in range(_MOST_WAITS):
        if poller.poll(_WAIT_BETWEEN):
            return int(os.read(reading, 16) or b"-1")
    return None

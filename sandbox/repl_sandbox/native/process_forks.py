"""Forks that the standard library lacks: without hooks, or as a sibling of the caller.

CPython's `os.fork` runs the hooks of `os.register_at_fork`, and makes children only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from _signal import SIGCHLD, SIGKILL  # plain numbers, unlike those of the public module
from functools import cache
from typing import Any, Final

from . import library, spawn
from .libc import CLONE_PARENT, check

# Bytes; more than struct sigaction has in any C library.
_SIGACTION_SIZE: Final = 256
# Waits of this many milliseconds in which a fork of a fork is made, also of gigabytes. Several and
# not one: if this process is not scheduled for seconds, the other may not be either, and that
# counts once.
_WAIT_BETWEEN: Final = 200
_MAX_WAITS: Final = 10

# PyDLL keeps the GIL held: a fork through it leaves the child with the interpreter's lock.
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
# Looked up once, here: in a forked process the search through all libraries copies some 60 pages.
_fork = _libc_with_gil.fork


def fork() -> int:
    """fork(3) for a process with one thread, without CPython's hooks.

    The hooks repair state that other threads may hold; there are none, and running the hooks costs
    half a millisecond of copied pages. The GIL stays with the caller, whose thread keeps its
    identity in the child.
    """
    return check(_fork(), "fork")


def fork_beside() -> int:
    """clone(2) as a fork whose child is the caller's sibling; 0 in the child.

    Its parent is the caller's parent, which reaps it: the caller's own waits never see it. For a
    process with one thread, as `fork`.
    """
    return spawn.fork_process(CLONE_PARENT)


def makes_siblings() -> bool:
    """Return whether `fork_beside` makes siblings: a kernel may accept the flag and make children.

    Tried; this process must have no child whose end it must learn of.
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
    """`fork_beside` for a process with other threads; the child has the caller's thread alone.

    fork(3) and CPython's hooks, those of os.register_at_fork among them, repair state of the C
    library and of CPython that these threads hold. fork(3) makes only children, so an intermediate
    child forks the final one and ends: the session's init adopts the orphan. No handler in any
    thread learns of the end of the intermediate child.
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
        os.kill(os.getpid(), SIGCHLD)  # for a child of the code whose signal was suppressed
    return pid


def _has_ended() -> bool:
    """Return whether a child waits to be reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _fork_by_another() -> int:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    between = _fork_with_hooks()
    if between == 0:
        child = _fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(child).encode())
        os._exit(0)
    os.close(writing)
    try:
        spawn.checked(between, "fork")
        answer = _reported(reading)
        if answer is None:
            # Blocked by a hook of session code, or by a lock of a C library that a thread held.
            os.kill(between, SIGKILL)
        os.waitpid(between, 0)
    finally:
        os.close(reading)
    if answer is None or answer == -1:
        raise OSError(errno.EAGAIN, "fork: no room for a second fork, or the first one did not end")
    return answer


class _HookedFork(ctypes.Structure):
    """hooked_fork.c, struct hooked_fork."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("before", "fork", "after_in_child", "after_in_parent", "error")
    )


def _fork_with_hooks() -> int:
    """fork(3) and CPython's hooks; a negative errno if there is no child."""
    return int(_hooked_fork()(ctypes.byref(_hooks())))


@cache
def _hooked_fork() -> Any:
    return library.load().function("fork_with_hooks", ctypes.c_long, ctypes.c_void_p)


@cache
def _hooks() -> _HookedFork:
    functions = (
        ctypes.pythonapi.PyOS_BeforeFork,
        _fork,
        ctypes.pythonapi.PyOS_AfterFork_Child,
        ctypes.pythonapi.PyOS_AfterFork_Parent,
    )
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    return _HookedFork(*addresses, spawn.errno_at())


def _reported(reading: int) -> int | None:
    """Return the number read from a pipe; None if none arrives in time."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    for _ in range(_MAX_WAITS):
        if poller.poll(_WAIT_BETWEEN):
            return int(os.read(reading, 16) or b"-1")
    return None

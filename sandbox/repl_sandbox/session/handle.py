"""`SessionHandle`: the common part of sync and async sessions: their owner, and whether they can be
used.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from ..display import DisplayedByRepr
from ..errors import SessionBusy, SessionClosed
from ..host.isolation import probe
from ..types import Isolation, Missing
from .core import Core

# A different object in each process: a forked child gets a new one. Programs that fork without
# Python's hooks must not run Python in the child (PyOS_AfterFork_Child).
_process = object()


def _mark_forked() -> None:
    global _process  # noqa: PLW0603 (there is one of a process)
    _process = object()


os.register_at_fork(after_in_child=_mark_forked)

_get_ident = threading.get_ident


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The functions of a sandbox that its session handles call.

    Attributes:
        sandbox: The sandbox, which the reference keeps alive.
        end: Ends a session, and waits for its end.
        end_at_once: Ends a session if that needs no waiting; returns whether it did.
        end_soon: Requests the end, and returns a descriptor that becomes readable when the session
            is gone, for `forget` to be called then; None if only `end` can end the session.
        forget: Releases a session that `end_soon` ended.
        add: Counts and watches a new branch.
        reserve_branch: Reserves the resources of one more branch, before it is made.
        release_branch: Releases what `reserve_branch` reserved.
    """

    sandbox: object
    end: Callable[[Core], None]
    end_at_once: Callable[[Core], bool]
    end_soon: Callable[[Core], int | None]
    forget: Callable[[Core], None]
    add: Callable[[Core], None]
    reserve_branch: Callable[[Core], None]
    release_branch: Callable[[Core], None]


class SessionSlot:
    """The reservation of one branch of a session."""

    def __init__(self, owner: SessionOwner, core: Core) -> None:
        self._owner = owner
        self._core = core
        self._taken = False

    def take(self) -> None:
        """Reserve a branch; raise SandboxError if none is left."""
        self._owner.reserve_branch(self._core)
        self._taken = True

    def give_back(self) -> None:
        """Release the reservation: there is no branch."""
        if self._taken:
            self._owner.release_branch(self._core)


def _warn_unclosed(session: str, pid: int, _: object) -> None:
    if os.getpid() == pid:  # else it belongs to the process that forked this one
        message = f"unclosed {session}: close it, or use it in a `with` statement"
        warnings.warn(message, ResourceWarning, stacklevel=2)


class SessionHandle(DisplayedByRepr):
    """The common part of sync and async sessions."""

    _missing: tuple[Missing, ...] = ()
    _is_cancelling = False  # whether a cancelled call is not complete yet

    def __init__(self, core: Core, owner: SessionOwner) -> None:
        self._core = core
        self._owner = owner
        self._lost: tuple[str, ...] = ()
        self._process = _process
        self._closed = False
        # The sandbox ends the core, which outlives a handle that nobody closed: a weak reference of
        # the core tells that the handle was dropped.
        session = f"<{type(self).__name__} {core.links.tier}>"
        core.handle_ref = weakref.ref(self, partial(_warn_unclosed, session, os.getpid()))

    def __repr__(self) -> str:
        ended = self._is_unusable or self._core.ended
        condition = "closed" if ended else "busy" if self._core.busy.locked() else "open"
        return f"<{type(self).__name__} {self._core.links.tier}, {condition}>"

    @property
    def lost(self) -> tuple[str, ...]:
        """For a branch: descriptions of what it could not take along from the original."""
        return self._lost

    @property
    def isolation(self) -> Isolation:
        """The session's tier and layers, probed now from outside and inside."""
        self._check_open()
        return probe(self._core.links)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all processes of the session so far, ended ones and branches included.

        The usage of an outcome is that of one cell's own process; only this includes children, and
        threads that run between cells. The resolution is 10 ms. Any thread may read it while a cell
        runs; reading takes about 0.1 ms.
        """
        self._check_open()
        links = self._core.links
        seconds: float = links.baseline.query(
            "cpu_seconds", links.baseline.query("descendants", links.pid)
        )
        return seconds

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The variables that a restored session lacks, with the reasons; else ()."""
        return self._missing

    @property
    def _is_unusable(self) -> bool:
        """True if the handle is closed, or belongs to another process."""
        return self._closed or self._process is not _process

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("the session is closed")
        if self._process is not _process:
            raise SessionClosed("the session belongs to the process that forked this one")
        if self._core.ended:
            raise SessionClosed("the session is closed: its sandbox is")

    def _acquire(self) -> None:
        if not self._core.busy.acquire(False):
            raise self._busy()
        try:
            self._enter()
        except BaseException:
            self._core.release()
            raise

    def _busy(self) -> SessionBusy:
        self._check_open()  # it may have ended, with its last caller about to return
        return SessionBusy("the session is busy with another call; use one session per thread")

    def _enter(self) -> None:
        """Do the checks at the start of a call, which holds `busy`."""
        core = self._core
        core.holder = _get_ident()
        if self._closed or self._process is not _process or core.ended or self._is_cancelling:
            self._handle_change()

    def _handle_change(self) -> None:
        """Handle a change since the last call."""
        self._check_open()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it is a live process")

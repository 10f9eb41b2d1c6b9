"""init from its birth until something is asked of it, without a line of Python.

Whatever a process writes to after a fork is copied, page by page. Most sessions' inits fork the
first worker, close themselves off and then wait until the session ends: in Python that is a hundred
pages and more, of each session. Here the C library does it all, in chains of contexts:

1. In the zygote: a clone whose child begins with the next chain (`quiet_clone`).
2. The birth: what both processes need, then fork(3), then setcontext to the last chain. That lies
   in memory which a child does not have (madvise(2), MADV_DONTFORK). So in the worker it fails; the
   worker goes on with the chain of its own steps (`quiet_steps`).
   Where there is none it comes back to where the zygote left Python, as it does after that.
3. The closing: the steps of init as `recipe` has them, and after each memcpy(3) of errno, which
   says what has failed first; write(2) of errno to the worker, which goes on if it is none;
   ppoll(2) until there is something to hear or a child has died. Its time limit is a pointer, into
   which errno is copied as well: it waits for ever or, after a failure, not at all. Then init, too,
   comes back to where the zygote left Python.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from . import contexts, remedies
from .calls import Calls, Row
from .forms import Form
from .libc import number
from .quiet_clone import QuietClone
from .quiet_rows import (
    SIGNALS,
    WORD,
    Awaited,
    closing,
    fill_in_maps,
    fill_in_stretches,
    waiting_for_maps,
)
from .recipe import BIRTH, Jail, Step, keep_descriptors, wait_for_maps

# Room, for blanks are laid out beforehand. A session has a group in each of some hierarchies of
# version 1, keeps eight descriptors, and has two sockets to wait for.
_GROUPS: Final = 8
_SOCKETS: Final = 4
_STEPS: Final = 16
# What is done besides the steps of init, as its failures are named.
_BESIDES: Final = ("streams", "worker")
# Bytes of stack: for handlers of signals, before which the kernel saves registers of up to 11 KiB,
# and for what libraries do when a process forks, pthread_atfork(3).
_HEADROOM: Final = 64 << 10
# The first process that an init makes in its new pid namespace.
FIRST_WORKER: Final = 2


class _Notes(ctypes.Structure):
    _fields_ = (
        ("failures", ctypes.c_int * _STEPS),  # errno after each step
        ("no_worker", ctypes.c_int),  # errno of the fork, if it has failed
        ("is_session", ctypes.c_int),  # whether this process is of the session
        ("is_init", ctypes.c_int),
        ("awaited", Awaited * _SOCKETS),
        ("no_signals", ctypes.c_uint64),
        ("yes", ctypes.c_int),
        ("myself", ctypes.c_char),  # what is written to join a group
    )


@dataclass(frozen=True, slots=True)
class Ends:
    """Descriptors of a session that is being made."""

    stdout: int
    stderr: int
    written: int  # the zygote's end of the pipe that says that the id maps are written
    done: int  # init's end of the pipe to the worker
    awaited: Sequence[int]  # what init listens to


class QuietInit:
    """Laid out once, in a template, for all that are forked from it."""

    def __init__(self, steps: Sequence[Step], *, own_ids: bool) -> None:
        """`steps`: those of init. `own_ids`: whether sessions have uids of their own.

        Raises:
            OSError: this machine or its C library has not what it takes, or a step is not of calls.
        """
        self._steps = (*(name for name, _ in BIRTH), *_BESIDES, *(name for name, _ in steps))
        if len(self._steps) > _STEPS:
            raise OSError(errno.E2BIG, "init has more steps than there is room for")
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Notes), mmap.MAP_PRIVATE)
        self._notes = _Notes.from_buffer(self._memory)
        self._notes.myself, self._notes.yes = b"0", 1
        self._chosen: tuple[object, ...] = ()
        self._errno = contexts.errno_at()
        self._held, self.saved = contexts.saved()
        self._closing = Form(list(self._closing_rows(steps, own_ids)), self.saved, _HEADROOM)
        self._birth = Form(list(self._birth_rows()), self.saved, _HEADROOM)
        self._cloning = QuietClone(self._birth, self.saved, _HEADROOM)
        fill_in_maps(self._closing)
        self._closing.fill_in("limit at", self._closing.where("limit"))
        self._closing.fill_in("limit", 0)

    # ── what is laid out ──────────────────────────────────────────────────────────────────────

    def _birth_rows(self) -> Iterator[Row]:
        yield self._mark("is_session")
        for group in range(_GROUPS):
            yield "syscall", f"join {group}", f"group {group}", self._at("myself"), 1
        yield self._note("cgroup")
        yield "close", "written"
        yield "dup2", "stdout", 1
        yield "dup2", "stderr", 2
        apart = self._closing
        yield "madvise", apart.address, len(apart.area), mmap.MADV_DONTFORK
        yield self._note("streams")
        yield ("fork",)
        yield "setcontext", apart.first
        yield "setcontext", "then"

    def _closing_rows(self, steps: Sequence[Step], own_ids: bool) -> Iterator[Row]:
        yield self._mark("is_init")
        # What libraries do when a process forks may leave an errno where nothing has failed.
        yield "memcpy", self._at("no_worker"), self._errno, WORD
        yield "memcpy", self._errno, self._failure("streams"), WORD
        yield "kill", FIRST_WORKER, 0
        yield self._note("worker")
        for name, step in steps:
            yield from self._calls(step, own_ids)
            yield self._note(name)
        yield "write", "done", self._errno, WORD
        yield "close", "done"
        yield "memcpy", "limit at", self._errno, WORD
        waiting = self._at("awaited"), "sockets", "limit", self._at("no_signals"), SIGNALS
        yield "syscall", number("ppoll"), *waiting

    def _calls(self, step: Callable[[Jail], None], own_ids: bool) -> Iterator[Row]:
        if isinstance(step, Calls):
            if own_ids or not step.of_own_ids:
                yield from step.rows
        elif step is keep_descriptors:
            yield from closing()
        elif step is wait_for_maps:
            yield from waiting_for_maps()
        else:
            raise OSError(errno.ENOTSUP, "a step of init is not of calls")

    def _mark(self, name: str) -> Row:
        return "memcpy", self._at(name), self._at("yes"), WORD

    def _note(self, step: str) -> Row:
        return "memcpy", self._failure(step), self._errno, WORD

    def _failure(self, step: str) -> int:
        return self._at("failures") + self._steps.index(step) * WORD

    def _at(self, field: str) -> int:
        return ctypes.addressof(self._notes) + int(getattr(_Notes, field).offset)

    # ── what is filled in ─────────────────────────────────────────────────────────────────────

    def prepare(self, jail: Jail, ends: Ends, then: int = 0) -> None:
        """In the template: lay out what is the next session's.

        `then`: the context that the worker goes on with; 0: that which the zygote has left.

        Raises:
            OSError: it has more of something than there is room for.
        """
        self._birth.fill_in("then", then)
        chosen = jail.groups, jail.mapped, frozenset(jail.kept), ends
        if chosen == self._chosen:
            return
        groups = jail.groups or ()
        if len(groups) > _GROUPS or len(ends.awaited) > _SOCKETS:
            raise OSError(errno.E2BIG, "there is no room for so many descriptors")
        self._chosen = ()
        self._fill_in_birth(groups, ends)
        self._fill_in_closing(jail.mapped, jail.kept, ends)
        self._chosen = chosen

    def _fill_in_birth(self, groups: Sequence[int], ends: Ends) -> None:
        fill_in = self._birth.fill_in
        for index in range(_GROUPS):
            joins = index < len(groups)
            fill_in(f"join {index}", number("write" if joins else "getpid"))
            fill_in(f"group {index}", groups[index] if joins else 0)
        for name in ("written", "stdout", "stderr"):
            fill_in(name, getattr(ends, name))

    def _fill_in_closing(self, mapped: int, kept: set[int], ends: Ends) -> None:
        fill_in = self._closing.fill_in
        fill_in_stretches(self._closing, kept)
        fill_in("mapped", mapped)
        fill_in("done", ends.done)
        fill_in("sockets", len(ends.awaited))
        for awaited, fd in zip(self._notes.awaited, ends.awaited, strict=False):
            awaited.fd, awaited.events = fd, select.POLLIN

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def clone(
        self, flags: int, folder: int | None = None, then: Callable[[], None] | None = None
    ) -> int:
        """clone(2) of a session's first process, which begins at once: its id, 0 in the session.

        Of that there are two processes then, which have to call `begin`; in init this comes back
        when there is something to do. `flags`, `folder`, `then`: as of `QuietClone.clone`.

        Raises:
            OSError: as of clone(2), or clone3(2).
        """
        first, failure = self._cloning.clone(flags, folder, then)
        if self._notes.is_session:
            return 0
        if first:
            return first
        if not failure:
            os._exit(1)  # a child that did not begin: there must not be another zygote
        raise OSError(failure, f"clone: {os.strerror(failure)}")

    def begin(self, tier: str) -> int:
        """In a session's first process: fork its worker, be its init, and wait.

        Returns 0 in the worker at once, and in init the worker's id when there is something to do.

        Raises:
            IsolationError: a step of init has failed.
        """
        notes = self._notes
        if not notes.is_session:
            self._birth.chain.run()
        if not notes.is_init:
            return 0
        for step, failure in zip(self._steps, notes.failures, strict=False):
            if failure:
                why = notes.no_worker if step == "worker" and notes.no_worker else failure
                error = OSError(why, os.strerror(why))
                raise remedies.failed(step, error, tier) from error
        return FIRST_WORKER


def prepare(steps: Sequence[Step], *, own_ids: bool) -> QuietInit | None:
    """None where it cannot be: then init does the same in Python."""
    try:
        return QuietInit(steps, own_ids=own_ids)
    except OSError:
        return None

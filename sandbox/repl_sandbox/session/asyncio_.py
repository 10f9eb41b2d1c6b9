"""`AsyncSession`: a session that an event loop drives, and how the loop waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..display import set_module
from ..protocol.checkpoints import Checkpoint
from ..tables import Settable
from ..types import JSON, AnyOutcome, Killed, VariableList, check_seed, parse_size
from .checkpoints import DEFAULT_LIMIT, loading, saving
from .core import (
    Core,
    check_answer_handler,
    check_code,
    check_timeout,
    fetch,
    list_variables,
    store,
)
from .files_api import AsyncSessionFiles, put_in_thread
from .handle import SessionHandle, SessionOwner, SessionSlot
from .host_functions import HostCallable, HostFunction, check
from .io import READ, ReadyDescriptors, SessionIO
from .running_cell import Accept

# `readable`: an event loop waits once for one descriptor.


async def readable(fd: int, seconds: float | None = None) -> None:
    """Wait until `fd` is readable or at its end, at most `seconds`."""
    loop = asyncio.get_running_loop()
    event: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, partial(_set, event))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event
    finally:
        loop.remove_reader(fd)


def _set(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


# `ReadPacing`: reads a session whose messages take much of an event loop slowly.
#
# Code of a session can write to the worker's socket: calls that are refused, as fast as a socket
# takes them, cost an attacker nothing and the loop 60 us each. So each session has an account of
# the time that its messages took. It may use a share of the loop's time, and some in advance. A
# session that owes more is read in small pieces, and as long as other sessions of the loop owe
# nothing, all debtors together get one part of the loop's time, in turn.

# Seconds of a loop that a session's messages may take in each second, and in advance.
_SHARE, _ADVANCE = 0.02, 0.05
# Additional seconds for each call of a client, which the client has asked for.
CALL_CREDIT = 0.0005
# The reciprocal of the share of a loop's time that debtors get.
_PARTS = 5
# Seconds for which a session that owes nothing is assumed to need the loop again.
_RECENT = 0.25
# Bytes of one read from a debtor: some refused calls, half a millisecond.
SMALL_READ = 1 << 10
# Seconds of the loop for a call of a host function, besides its message: the function is a task of
# the loop, or a thread that holds the interpreter lock.
CALL_SECONDS = 0.0003
# Seconds for a breach of the protocol: another worker must be started, by processes that other
# sessions need.
BREACH_SECONDS = 0.02
# The longest time in seconds that a client waits for the outcome of a cell because of that.
MAX_DELAY = 1.0


class LoopShare:
    """The debtors of one event loop, in turn."""

    def __init__(self) -> None:
        # The time at which a session that owed nothing was last used.
        self.used_at = 0.0
        self._free_at = 0.0

    def next(self, seconds: float, now: float) -> float:
        """The time at which a debtor that took `seconds` may go on."""
        if now - self.used_at > _RECENT:
            return now
        self._free_at = max(self._free_at, now) + seconds * _PARTS
        return self._free_at


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = WeakKeyDictionary()


def share_of(loop: asyncio.AbstractEventLoop) -> LoopShare:
    """The turns of `loop`, which all its sessions share."""
    share = _shares.get(loop)
    if share is None:
        share = _shares[loop] = LoopShare()
    return share


class ReadPacing:
    """The account of one session. Times are arguments; `now` is monotonic."""

    def __init__(self) -> None:
        self._debt = self._charged_at = 0.0
        self._since_read = 0.0

    def begin(self, share: LoopShare, now: float) -> None:
        """Credit a call of the session's client, which uses the loop."""
        if self._debt:
            self._debt = max(0.0, self._debt - CALL_CREDIT)
        if not self.is_over_share(now):
            share.used_at = now

    def charge(self, seconds: float, now: float) -> None:
        """Charge `seconds` of the session's messages, until `now`."""
        paid = (now - self._charged_at) * _SHARE
        self._debt = max(0.0, self._debt - paid) + seconds
        self._charged_at = now
        self._since_read += seconds

    def is_over_share(self, now: float) -> bool:
        """Return whether the session's messages took more than their share."""
        debt = self._debt
        return debt > _ADVANCE and debt - (now - self._charged_at) * _SHARE > _ADVANCE

    def next_read(self, share: LoopShare, now: float) -> float:
        """The time of the next read from a session that owes."""
        seconds, self._since_read = self._since_read, 0.0
        return share.next(seconds, now)


# `DescriptorWatch`: an event loop waits until a descriptor of a session is ready.

_POLLIN = select.POLLIN
_monotonic = time.monotonic
_running_loop = asyncio.get_running_loop


class DescriptorWatch:
    """The registration of one session with an event loop, from the first wait to `close`.

    The loop watches one descriptor, whatever the session's current ones are, also between calls:
    registering and unregistering a descriptor takes longer than the wait. Input that arrives while
    no caller waits unregisters it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # poll(2) reports descriptors in their order, and the worker's is the first.
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()
        self._interest = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._share: LoopShare | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_unread_input = False
        # A timer is kept for the next wait, which mostly ends later: setting and cancelling one for
        # each step would be a tenth of the host's time for the step.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = self._wake = 0.0

    async def ready(self, io: SessionIO, wake: float) -> list[tuple[int, int]]:
        """The descriptors of `io` that are ready by the time `wake`, or none."""
        if self._registered is not io.descriptors or self._interest != io.send_buffer.interest:
            self._register(io)
        loop = _running_loop()
        if loop is not self._loop:
            self._begin(loop)
        self._waiter, self._wake = loop.create_future(), wake
        if self._timer is None or wake < self._timer_ends:
            self._set_timer(loop)
        try:
            await self._waiter
        finally:
            self._waiter, self._has_unread_input = None, False
        return self._poller.poll(0)

    def share(self) -> LoopShare:
        """The time shares of the running loop."""
        loop = _running_loop()
        if self._share is None or loop is not self._loop:
            self._share = share_of(loop)
        return self._share

    def close(self) -> None:
        """Stop watching; the numbers of the descriptors may be reused from now on."""
        self._forget()
        self._epoll.close()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ends = self._wake
        self._timer = loop.call_later(max(0.0, self._wake - _monotonic()), self._handle_timer)

    def _handle_timer(self) -> None:
        """Handle the timer of a wait, perhaps of an earlier one."""
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._loop is None:
            return
        if _monotonic() < self._wake:
            self._set_timer(self._loop)
        else:
            self._waiter.set_result(None)

    def _end_wait(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
        elif self._has_unread_input:
            self._forget()
        else:
            # The loop polled again before the waiting caller could read.
            self._has_unread_input = True

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._forget()
        loop.add_reader(self._epoll.fileno(), self._end_wait)
        self._loop = loop

    def _forget(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._epoll.fileno())

    def _register(self, io: SessionIO) -> None:
        for fd in self._registered:
            self._poller.unregister(fd)
            try:
                self._epoll.unregister(fd)
            except OSError:
                # It was closed with the worker that it belonged to; the kernel has removed it
                # already.
                pass
        interest = io.send_buffer.interest
        for fd in io.descriptors:
            events = interest if fd == io.worker_fd else _POLLIN
            self._poller.register(fd, events)
            self._epoll.register(fd, events)
        self._registered, self._interest = io.descriptors, interest


# `AsyncSession`: a session that an event loop drives.

_T = TypeVar("_T")

# Seconds between two reads of output past the limit. That output is dropped, so no caller waits,
# and the loop has other sessions to serve; the code waits, with a full pipe.
_PAUSE = 0.01


@set_module("repl_sandbox")
class AsyncSession(SessionHandle):
    """`Session`, awaited. Cancelling a call interrupts the cell; the session can still be used.

    ```python
    async with AsyncSandbox() as sandbox, await sandbox.session() as session:
        await session.set("price", 3)
        outcome = await session.run("2 * price", timeout=5)  # seconds
        print(outcome.ok, outcome.value, await session.get("price"))  # True 6 3
    ```
    """

    def __init__(self, core: Core, owner: SessionOwner) -> None:
        super().__init__(core, owner)
        self._watch = DescriptorWatch()
        self._pacing = ReadPacing()
        core.output.take_turns()

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> AnyOutcome:
        """As `Session.run`.

        `on_output` is called on the event loop, which waits for it: slow work belongs in a thread
        or a queue.
        """
        data = check_code(code)
        if on_output is not None:
            check_answer_handler(on_output)
        core = self._core
        seconds = check_timeout(timeout, core.limits, timeout_s)
        self._acquire()
        try:
            wake = core.cells.begin(data, seconds, on_output)
            self._pacing.begin(self._watch.share(), core.running.running_since)
            ready = await self._ready(wake)
            began = _monotonic()
            outcome = core.cells.try_finish(ready)
            if (took := _monotonic() - began) > CALL_CREDIT:
                self._pacing.charge(took - CALL_CREDIT, began)
            if outcome is None:
                outcome = await self._wait(core.cells.run())
                if isinstance(outcome, Killed) and outcome.reason == "protocol":
                    await self._delay_after_breach()
        except BaseException:
            await self._finish_cancelled()
            raise
        core.release()
        return outcome

    async def set(self, name: str, value: Settable) -> None:
        """As `Session.set`."""
        await self._drive(lambda core: store(core, name, value))

    async def get(self, name: str, *, as_answer: bool = False) -> JSON:
        """As `Session.get`."""
        return await self._drive(lambda core: fetch(core, name, as_answer=as_answer))

    async def variables(self) -> VariableList:
        """As `Session.variables`."""
        return await self._drive(list_variables)

    async def rollback(self, n: int = 1) -> tuple[str, ...]:
        """As `Session.rollback`."""
        return await self._drive(lambda core: core.recovery.rollback(n))

    async def branch(
        self,
        *,
        seed: int | None = None,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        on_answer: Accept | None = None,
    ) -> AsyncSession:
        """As `Session.branch`."""
        seed = check_seed(seed)
        registry = None if host is None else check(host)
        self._core.check_registry(registry)
        self._check_open()
        slot, links = SessionSlot(self._owner, self._core), None
        try:
            links = await self._drive(lambda core: core.branches.make(seed, slot.take))
            branch = AsyncSession(self._core.branch_core(links, registry, on_answer), self._owner)
        except BaseException:
            if links is not None:
                links.close()
            slot.give_back()
            raise
        self._owner.add(branch._core)
        try:
            branch._lost = await branch._drive(lambda core: core.branches.begin())
        except BaseException:
            await branch.close()
            raise
        return branch

    @property
    def files(self) -> AsyncSessionFiles:
        """The files of the session's workspace: `put`, `get`, `list`, awaited."""
        return AsyncSessionFiles(self)

    async def checkpoint(
        self,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        limit: int | str = DEFAULT_LIMIT,
    ) -> bytes:
        """As `Session.checkpoint`."""
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        max_bytes = parse_size(limit, "limit")
        draft = await self._drive(lambda core: saving(core, max_bytes, seconds))
        return await asyncio.shield(put_in_thread(draft.finish))

    async def _load(
        self, saved: Checkpoint, timeout: float | None, timeout_s: float | None
    ) -> None:
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        self._missing = await self._drive(lambda core: loading(core, saved, seconds))

    async def interrupt(self) -> None:
        """As `Session.interrupt`."""
        self._check_open()
        self._core.io.init.interrupt()

    async def close(self) -> None:
        """As `Session.close`. It completes even if its caller is cancelled."""
        if self._is_unusable:
            # In a forked child nothing may be waited for: the watching loop is the parent's, and
            # both share the descriptors that the loop waits on.
            if not self._closed:
                self._closed = True
                self._owner.end(self._core)
        else:
            self._closed = True
            if self._owner.end_at_once(self._core):
                self._watch.close()
                return
            pidfd = self._owner.end_soon(self._core)
            if pidfd is None:
                ending = put_in_thread(lambda: self._owner.end(self._core))
                ending.add_done_callback(lambda _: self._watch.close())
            else:
                ending = asyncio.get_running_loop().create_task(self._release_when_gone(pidfd))
            await asyncio.shield(ending)

    async def _release_when_gone(self, pidfd: int) -> None:
        """Release the session when the descriptor `pidfd` reports that all its processes have
        ended.
        """
        try:
            await readable(pidfd)
        finally:  # a loop that ends waits for nothing, and the zygote ends the session all the same
            os.close(pidfd)
            self._owner.forget(self._core)
            self._watch.close()

    async def __aenter__(self) -> AsyncSession:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _drive(self, operation: Callable[[Core], Generator[float, Any, _T]]) -> _T:
        self._acquire()
        try:
            result = await self._wait(operation(self._core))
        except BaseException:
            await self._finish_cancelled()
            raise
        self._core.release()
        return result

    async def _finish_cancelled(self) -> None:
        """After a cancellation, or an exception of `on_output`: leave the session so that it can go
        on.
        """
        core = self._core
        if self._is_unusable or not core.is_occupied:
            core.release()
            return
        # Shielded: a second cancellation must not leave a cell running without a caller.
        finishing = asyncio.get_running_loop().create_task(self._wait(core.abandon()))
        finishing.add_done_callback(self._cancelled_finished)
        await asyncio.shield(finishing)

    def _cancelled_finished(self, finishing: asyncio.Task[None]) -> None:
        self._core.release()
        if not finishing.cancelled():
            finishing.exception()  # the session was closed meanwhile; there may be no caller left

    async def _wait(self, steps: Generator[float, Any, _T]) -> _T:
        core = self._core
        try:
            wake = next(steps)
            while True:
                ready = await self._ready(wake)
                began, called = _monotonic(), core.calls.count
                try:
                    wake = steps.send(ready)
                finally:
                    took = _monotonic() - began + (core.calls.count - called) * CALL_SECONDS
                    self._pacing.charge(took, began)
                if core.output.overflows:
                    await asyncio.sleep(_PAUSE)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _ready(self, wake: float) -> ReadyDescriptors:
        """Return the descriptors that are ready by the time `wake`; later if the session owes
        time.
        """
        core, pacing, now = self._core, self._pacing, _monotonic()
        core.io.read_size = READ
        if pacing.is_over_share(now):
            core.io.read_size = SMALL_READ
            turn = pacing.next_read(self._watch.share(), now)
            if turn > now:
                await asyncio.sleep(min(turn, wake) - now)
            return await self._watch.ready(core.io, wake)
        ready = await self._watch.ready(core.io, wake)
        self._watch.share().used_at = now
        return ready

    async def _delay_after_breach(self) -> None:
        """Book a breach of the protocol, so that code that repeats it cannot keep the machine
        busy.
        """
        now = _monotonic()
        turn = self._watch.share().next(BREACH_SECONDS, now)
        if turn > now:
            await asyncio.sleep(min(turn - now, MAX_DELAY))

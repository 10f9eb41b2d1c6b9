"""`AsyncSession`: a session that an event loop drives."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from ...protocol.checkpoint_manifest import Checkpoint
from ...session_limits import check_seed, parse_size
from ...set_module import set_module
from ...types import JSON, AnyOutcome, Killed, Variable
from ..cells.cell_answers import Accept
from ..checkpoint_jobs import DEFAULT_LIMIT, loading, saving
from ..core import Core
from ..files.async_session_files import AsyncSessionFiles
from ..host_functions.function_registry import HostCallable, check
from ..host_functions.host_function import HostFunction
from ..io import READ, ReadyDescriptors
from ..session_operations import (
    check_answer_handler,
    check_code,
    check_timeout,
    fetch,
    list_variables,
    store,
)
from ..thread_offload import put_in_thread
from .descriptor_watch import DescriptorWatch
from .loop_wait import readable
from .read_pacing import (
    BREACH_SECONDS,
    CALL_CREDIT,
    CALL_SECONDS,
    MAX_DELAY,
    SMALL_READ,
    ReadPacing,
)
from .session_handle import SessionHandle, SessionOwner, SessionSlot

_T = TypeVar("_T")

# Seconds between two reads of output past the limit. That output is dropped, so no caller waits,
# and the loop has other sessions to serve; the code waits, with a full pipe.
_PAUSE = 0.01

_monotonic = time.monotonic


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

    async def set(self, name: str, value: str | bytes | JSON) -> None:
        """As `Session.set`."""
        await self._drive(lambda core: store(core, name, value))

    async def get(self, name: str, *, as_answer: bool = False) -> JSON:
        """As `Session.get`."""
        return await self._drive(lambda core: fetch(core, name, as_answer=as_answer))

    async def variables(self) -> list[Variable]:
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

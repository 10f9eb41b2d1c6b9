"""`AsyncSandbox`: a sandbox for asyncio. Waits for processes happen in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, Unpack

from .display import DisplayedByRepr, set_module
from .errors import IsolationError, SandboxError
from .host.links import SessionLinks
from .host.pool import SessionArguments, WarmPool
from .host.template import AnyZygote
from .options import SandboxArguments
from .protocol.checkpoints import parse
from .sandbox import NO_PICKLE, Sandbox
from .session.asyncio_ import AsyncSession, readable
from .session.core import Core
from .session.files_api import put_in_thread
from .session.host_functions import HostCallable, HostFunction
from .session.running_cell import Accept
from .types import Answers, Limits, Statistics

if TYPE_CHECKING:
    from .host.shared_objects import Shareable, SharedObjects


# Acquire a session on an event loop: the loop waits for the session, and no thread does.


async def acquire_links(pool: WarmPool, zygote: AnyZygote, limits: Limits) -> SessionLinks:
    """Return the links of a session whose worker has sent its first message, as `WarmPool.take`."""
    for links in pool.prestarted(limits):
        await _first_message(zygote, links)
        if pool.await_ready(links):
            return links
    links = pool.begin(limits)
    await _first_message(zygote, links)
    return links


async def _first_message(zygote: AnyZygote, links: SessionLinks) -> None:
    if links.worker_pid or links.has_input:
        return
    try:
        # The next reader of the links reports a message that does not arrive in time.
        await readable(links.worker.fileno(), zygote.seconds)
    except BaseException:
        zygote.abandon(links)
        raise


@set_module("repl_sandbox")
class AsyncSandbox(DisplayedByRepr):
    """`Sandbox` for asyncio: `async with`, sessions awaited. Arguments are those of `Sandbox`.

    ```python
    async with AsyncSandbox(limits=Limits(memory="512MiB")) as sandbox:
        async with await sandbox.session() as session:
            print((await session.run("1 + 1")).value)  # 2
    ```
    Raises:
        TypeError: there is no such argument. `start` checks the values.
    """

    def __init__(self, **arguments: Unpack[SandboxArguments]) -> None:
        for name in arguments.keys() - SandboxArguments.__annotations__.keys():
            raise TypeError(
                f"AsyncSandbox has no argument {name!r}: the arguments are those of Sandbox"
            )
        self._arguments = arguments
        self._sandbox: Sandbox | None = None
        self._starting: asyncio.Task[Sandbox] | None = None
        self._owner = True

    @classmethod
    def of(cls, sandbox: Sandbox) -> AsyncSandbox:
        """An asynchronous interface to a running `Sandbox`, which stays its owner's.

        A sandbox can have any number of them, on any event loops, beside its synchronous sessions.
        Closing the interface closes nothing: its callers close their sessions, and the owner
        closes the sandbox.

        Raises:
            TypeError: `sandbox` is not a Sandbox.
        """
        if not isinstance(sandbox, Sandbox):
            message = "sandbox must be a Sandbox (from repl_sandbox import Sandbox)"
            raise TypeError(f"{message}, not {type(sandbox).__name__}")
        interface = cls()
        interface._sandbox, interface._owner = sandbox, False
        return interface

    def __repr__(self) -> str:
        of = "not started" if self._sandbox is None else f"of {self._sandbox!r}"
        return f"<AsyncSandbox {of}>"

    @property
    def plain(self) -> Sandbox | None:
        """The underlying `Sandbox`; None before it has started."""
        return self._sandbox

    @property
    def limits(self) -> Limits:
        """As `Sandbox.limits`."""
        if self._sandbox is not None:
            return self._sandbox.limits
        return self._arguments.get("limits") or Limits()

    async def __aenter__(self) -> AsyncSandbox:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the template, unless it runs already."""
        if self._sandbox is not None:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(
                asyncio.to_thread(lambda: Sandbox(**self._arguments))
            )
        starting = self._starting
        try:
            # One task for all callers that wait; `close` awaits it if they were cancelled.
            self._sandbox = await asyncio.shield(starting)
        finally:
            if starting.done() and self._starting is starting:
                self._starting = None

    def session(
        self,
        *,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        answers: Answers | None = None,
        on_answer: Accept | None = None,
    ) -> SessionRequest:
        """As `Sandbox.session`; await it, or use it in `async with`."""

        async def start() -> AsyncSession:
            await self.start()
            sandbox = self._sandbox
            assert sandbox is not None
            arguments = SessionArguments(host, limits, seed, answers, on_answer)
            await asyncio.sleep(0)  # a cancelled task notices here, before it acquires a session
            if sandbox._zygote.accepts_requests:
                core = await _make_core(sandbox, arguments)
                return AsyncSession(core, sandbox._lifecycle.owner(sandbox))
            # Many sessions are being started at once, and the zygote has to catch up.
            making = asyncio.create_task(
                asyncio.to_thread(sandbox._core, sandbox._loop_executor, arguments)
            )
            try:
                core = await asyncio.shield(making)
            except asyncio.CancelledError:
                # The thread continues, and no other code would close the session.
                _end_when_made(making, sandbox)
                raise
            return AsyncSession(core, sandbox._lifecycle.owner(sandbox))

        return SessionRequest(start)

    def restore(
        self,
        data: bytes,
        *,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        answers: Answers | None = None,
        on_answer: Accept | None = None,
        timeout: float | None = None,
        timeout_s: float | None = None,
    ) -> SessionRequest:
        """As `Sandbox.restore`; await it, or use it in `async with`."""

        async def start() -> AsyncSession:
            await self.start()
            assert self._sandbox is not None
            saved = self._sandbox._check_checkpoint(await asyncio.to_thread(parse, data))
            session = await self.session(
                host=host, limits=limits, answers=answers, on_answer=on_answer
            )
            try:
                await session.files.put_all(files or {})
                await session._load(saved, timeout, timeout_s)
            except BaseException:
                await asyncio.shield(session.close())
                raise
            return session

        return SessionRequest(start)

    @property
    def shared(self) -> Mapping[str, Shareable]:
        """As `Sandbox.shared`."""
        return {} if self._sandbox is None else self._sandbox.shared

    def with_shared(self, /, **objects: Shareable) -> SandboxRequest:
        """As `Sandbox.with_shared`; await it, or use it in `async with`."""
        return self._growing(lambda sandbox: partial(sandbox.with_shared, **objects))

    def with_parcel(self, parcel: SharedObjects) -> SandboxRequest:
        """As `Sandbox.with_parcel`; a cancelled caller may close the parcel meanwhile."""

        def growing(sandbox: Sandbox) -> Callable[[], Sandbox]:
            copy = replace(parcel, fd=os.dup(parcel.fd))

            def grow() -> Sandbox:
                with copy:
                    return sandbox.with_parcel(copy)

            return grow

        return self._growing(growing)

    def _growing(self, growing: Callable[[Sandbox], Callable[[], Sandbox]]) -> SandboxRequest:
        async def start() -> AsyncSandbox:
            await self.start()
            sandbox = self._sandbox
            assert sandbox is not None
            making = asyncio.create_task(asyncio.to_thread(growing(sandbox)))
            try:
                child = await asyncio.shield(making)
            except asyncio.CancelledError:
                _close_when_made(making)
                raise
            found = AsyncSandbox()
            found._sandbox = child
            return found

        return SandboxRequest(start)

    def statistics(self) -> Statistics:
        """As `Sandbox.statistics`."""
        return Statistics(0, 0, 0) if self._sandbox is None else self._sandbox.statistics()

    async def close(self) -> None:
        """As `Sandbox.close`; does nothing after `of`."""
        await self._in_thread(Sandbox.close)

    async def retire(self) -> None:
        """As `Sandbox.retire`; does nothing after `of`."""
        await self._in_thread(Sandbox.retire)

    async def _in_thread(self, end: Callable[[Sandbox], None]) -> None:
        if not self._owner:
            return
        if self._starting is not None:
            with contextlib.suppress(SandboxError, TypeError, ValueError):
                await self.start()
        if self._sandbox is not None:
            await asyncio.shield(put_in_thread(partial(end, self._sandbox)))

    @property
    def refusals(self) -> tuple[IsolationError, ...]:
        """As `Sandbox.refusals`; empty before the template runs."""
        return () if self._sandbox is None else self._sandbox.refusals

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an AsyncSandbox {NO_PICKLE}")


async def _make_core(sandbox: Sandbox, arguments: SessionArguments) -> Core:
    """`Sandbox._core`, awaited: the event loop waits for the session, and no thread does."""
    limits, make = sandbox._core_factory(sandbox._loop_executor, arguments)
    lifecycle = sandbox._lifecycle
    with lifecycle.starting():
        links = await acquire_links(lifecycle.pool, sandbox._zygote, limits)
        core = lifecycle.finish(make, links)
    return lifecycle.register(core)


def _end_when_made(making: asyncio.Task[Core], sandbox: Sandbox) -> None:
    def end(task: asyncio.Task[Core]) -> None:
        if not task.cancelled() and task.exception() is None:
            sandbox._lifecycle.end(task.result())

    making.add_done_callback(end)


def _close_when_made(making: asyncio.Task[Sandbox]) -> None:
    def end(task: asyncio.Task[Sandbox]) -> None:
        if not task.cancelled() and task.exception() is None:
            # Closing may wait for processes, and this is the event loop's thread.
            threading.Thread(target=task.result().close, name="repl-close").start()

    making.add_done_callback(end)


class _Closable(Protocol):
    async def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)


class _Request(Generic[_T]):
    """A pending object: awaitable, and an async context manager that closes it."""

    def __init__(self, start: Callable[[], Awaitable[_T]]) -> None:
        self._start = start
        self._resource: _T | None = None

    def __await__(self) -> Generator[Any, None, _T]:
        return self._start().__await__()

    async def __aenter__(self) -> _T:
        self._resource = await self._start()
        return self._resource

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._resource is not None:
            await self._resource.close()


class SessionRequest(_Request[AsyncSession]):
    """A pending session: awaitable, and an async context manager that closes it."""


class SandboxRequest(_Request[AsyncSandbox]):
    """A pending sandbox: awaitable, and an async context manager that closes it."""

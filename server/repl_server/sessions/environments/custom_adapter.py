"""`CustomAdapter`: environments built on `repl_env.interfaces` or OpenEnv's base class.

An environment with asynchronous methods of its own runs on the event loop. Any other runs in the
thread that created it, because a blocking call would block the event loop for all sessions.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from repl_env.concurrency.thread_pool import capture_error, capture_error_async

from ...protocol.request_models import FollowUpArguments, ResetArguments
from ...protocol.validation import validate
from ...uploads.tenant_uploads import TenantUploads
from .dedicated_thread import DedicatedThread
from .environment_adapter import EnvironmentAdapter, unsupported

T = TypeVar("T")


class CustomAdapter:
    """A custom environment, and the thread that created it."""

    def __init__(self, environment: Any, thread: DedicatedThread, uploads: TenantUploads) -> None:
        self.environment = environment
        self._uploads = uploads
        self._thread = thread
        self._running: asyncio.Future[Any] | None = None  # a call in the thread
        self._closed = False

    @property
    def scored(self) -> bool:
        """False: unknown for a custom environment."""
        return False

    async def reset(self, data: ResetArguments | dict[str, Any]) -> Any:
        """As `EnvironmentAdapter.reset`; unknown arguments are dropped, as in OpenEnv."""
        arguments: ResetArguments = validate(ResetArguments, data, ("data",))
        data = await self._uploads.decode_arguments(arguments.given())
        return _sound(await self._call("reset", given=data))

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """As `EnvironmentAdapter.step`."""
        more = {} if timeout_s is None else {"timeout_s": timeout_s}
        return _sound(await self._call("step", action, given=more))

    async def state(self) -> BaseModel:
        """As `EnvironmentAdapter.state`."""
        looking: Callable[[], BaseModel] = partial(getattr, self.environment, "state")
        bound = getattr(self.environment, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
        if bound or not _is_asynchronous(type(self.environment), "step"):
            return await self._in_thread(looking)
        return capture_error(looking)

    async def variables(self) -> list[str]:
        """Unsupported."""
        raise unsupported("variables")

    async def follow_up(self, arguments: FollowUpArguments) -> Any:
        """Unsupported."""
        raise unsupported("follow_up")

    async def draft(self) -> Any:
        """Unsupported."""
        raise unsupported("draft")

    async def rollback(self, cells: int) -> Sequence[str]:
        """Unsupported."""
        raise unsupported("rollback")

    async def branch(self, seed: int | None) -> EnvironmentAdapter:
        """Unsupported."""
        raise unsupported("branch")

    @property
    def files(self) -> NoReturn:
        """Unsupported."""
        raise unsupported("files")

    async def interrupt(self) -> bool:
        """As `EnvironmentAdapter.interrupt`: a coroutine can be cancelled, a thread cannot."""
        return _is_asynchronous(type(self.environment), "step")

    @property
    def cpu_seconds(self) -> float | None:
        """None: unknown for a custom environment."""
        return None

    async def cut_off(self) -> None:
        """Does nothing: a thread cannot be killed."""

    async def close(self) -> None:
        """As `EnvironmentAdapter.close`; waits for a call in the thread, which cannot be killed."""
        if not self._closed:
            self._closed = True
            try:
                if self._running is not None:
                    await asyncio.wait([self._running])
                await self._call("close")
            finally:
                self._thread.end()

    async def _call(self, name: str, *args: Any, given: Mapping[str, Any] | None = None) -> Any:
        """Call a method or its asynchronous variant, with those of `given` that it accepts."""
        awaited = _is_asynchronous(type(self.environment), name)
        method = getattr(self.environment, f"{name}_async" if awaited else name)
        calling = partial(method, *args, **(_known(method, given) if given else {}))
        if awaited:
            return await capture_error_async(calling())
        return await self._in_thread(calling)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        running = self._running = self._thread.run(work)
        # A cancelled caller leaves the thread at work; `close` waits for it.
        return await asyncio.shield(running)


def _is_asynchronous(kind: type, name: str) -> bool:
    """Return whether `name_async` is overridden, and no base's wrapper of the blocking method."""
    for each in kind.__mro__:
        if f"{name}_async" in vars(each):
            return True
        if name in vars(each):
            return False
    return False


def _known(method: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _sound(observation: Any) -> Any:
    if observation.reward is not None and not math.isfinite(observation.reward):
        raise ValueError(f"the reward must be finite, not {observation.reward}")
    return observation

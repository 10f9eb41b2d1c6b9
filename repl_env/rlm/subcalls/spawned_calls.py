"""Sub-calls that run concurrently with the code that began them, and their handles.

A handle in the session has a number; the task is here. A number from the session may be any JSON:
unknown numbers have no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from repl_env.rlm import events
from repl_env.rlm.subcalls.subcall_messages import SubcallReply, check_wait

# Open spawned calls of one episode: as many as a session may have calls of other kinds.
MAX_SPAWNED = 256

# The result of a cancelled call.
CANCELLED = SubcallReply(f"Error: {events.CANCELLED}", events.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Spawned:
    """A running call. `finished` is done when no part of it runs any more."""

    task: asyncio.Task[SubcallReply]
    loop: asyncio.AbstractEventLoop
    finished: Future[None]


class SpawnedCalls:
    """The spawned calls of one episode. They end with it."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Spawned] = {}

    def check_limit(self) -> None:
        """Raise ValueError, for the session's code, if the limit on open calls is reached."""
        if sum(not each.task.done() for each in self._by_number.values()) >= MAX_SPAWNED:
            raise ValueError(f"{MAX_SPAWNED} spawned calls are open; wait for one first")

    def begin(self, call: Coroutine[Any, Any, SubcallReply]) -> int:
        """Start `call` on the running loop and return its number."""
        task = asyncio.create_task(call)
        spawned = _Spawned(task, asyncio.get_running_loop(), Future())
        task.add_done_callback(lambda _: spawned.finished.set_result(None))
        number = len(self._by_number) + 1
        self._by_number[number] = spawned
        return number

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods of the handles in the session, with the number as first argument."""
        return {
            "result": self._result,
            "done": self._done,
            "cancel": self._cancel,
            "wait": self._wait,
        }

    def cancel_all(self) -> list[Future[None]]:
        """Cancel open calls, from any thread; done when all resources are released."""
        running = [each for each in self._by_number.values() if not each.finished.done()]
        for each in running:
            # A closed loop has ended its tasks.
            with suppress(RuntimeError):
                each.loop.call_soon_threadsafe(each.task.cancel)
        return [each.finished for each in running if not each.loop.is_closed()]

    async def _result(self, number: Any, timeout: Any = None) -> dict[str, Any] | None:
        task = self._of(number).task
        await asyncio.wait({task}, timeout=check_wait(timeout))
        if not task.done():
            return None
        if task.cancelled():
            return CANCELLED.to_json()
        reply = task.result()
        if reply.refusal is not None:
            raise reply.refusal
        return reply.to_json()

    async def _done(self, number: Any) -> bool:
        return self._of(number).task.done()

    async def _cancel(self, number: Any) -> bool:
        return self._of(number).task.cancel()

    async def _wait(self, numbers: Any, timeout: Any = None) -> list[int]:
        """Return the ended ones of these calls, once there is one or the time is over."""
        if not isinstance(numbers, list) or not numbers:
            raise TypeError("numbers must be a list of calls")
        tasks = {number: self._of(number).task for number in numbers}
        await asyncio.wait(
            tasks.values(), timeout=check_wait(timeout), return_when=asyncio.FIRST_COMPLETED
        )
        return [number for number, task in tasks.items() if task.done()]

    def _of(self, number: Any) -> _Spawned:
        spawned = self._by_number.get(number) if type(number) is int else None
        if spawned is None:
            raise LookupError("this episode has spawned no such call")
        return spawned

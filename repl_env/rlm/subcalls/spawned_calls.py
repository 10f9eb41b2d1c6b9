"""Sub-calls that go on beside the code that began them, and the handles by which it finds them.

A handle in the session has a number; the task is here. What the session says a number is, may be
any JSON: one that this episode did not give out is nobody's.
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

# Spawned calls that one episode may have open: as many as a session may have calls of other kinds.
MOST_SPAWNED = 256

# What is told of a call that nobody waits for any more.
CANCELLED = SubcallReply(f"Error: {events.CANCELLED}", events.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Spawned:
    """A call under way. `ended` is done when nothing of it runs any more."""

    task: asyncio.Task[SubcallReply]
    loop: asyncio.AbstractEventLoop
    ended: Future[None]


class SpawnedCalls:
    """The spawned calls of one episode. They end with it."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Spawned] = {}

    def check_room(self) -> None:
        """ValueError for the code that asks, if as many are open as may be."""
        if sum(not each.task.done() for each in self._by_number.values()) >= MOST_SPAWNED:
            raise ValueError(f"{MOST_SPAWNED} spawned calls are open; wait for one first")

    def begin(self, call: Coroutine[Any, Any, SubcallReply]) -> int:
        """Let `call` go on, on the running loop; its number."""
        task = asyncio.create_task(call)
        spawned = _Spawned(task, asyncio.get_running_loop(), Future())
        task.add_done_callback(lambda _: spawned.ended.set_result(None))
        number = len(self._by_number) + 1
        self._by_number[number] = spawned
        return number

    def methods(self) -> dict[str, Callable[..., Any]]:
        """What the handles in the session call, with the number first."""
        return {
            "result": self._result,
            "done": self._done,
            "cancel": self._cancel,
            "wait": self._wait,
        }

    def cancel_all(self) -> list[Future[None]]:
        """Cancel what is open, from any thread; done when it has let go of everything."""
        under_way = [each for each in self._by_number.values() if not each.ended.done()]
        for each in under_way:
            # A loop that is closed has ended its tasks.
            with suppress(RuntimeError):
                each.loop.call_soon_threadsafe(each.task.cancel)
        return [each.ended for each in under_way if not each.loop.is_closed()]

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
        """Those of the calls that have ended, once at least one has or the time is over."""
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

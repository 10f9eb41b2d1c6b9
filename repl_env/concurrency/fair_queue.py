"""`FairQueue`: a first-come, first-served queue of coroutines from any event loops and threads.

Nobody overtakes, so that large requests do not starve behind small ones: released resources go to
the first waiter, not to the fastest.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
GrantT = TypeVar("GrantT")


class _Waiter(Generic[RequestT, GrantT]):
    """A waiter in its own loop."""

    def __init__(self, request: RequestT) -> None:
        self.request = request
        self.grant: GrantT | None = None
        self.loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> bool:
        """Wake the waiter; False if its loop is closed, so that it never wakes."""
        try:
            self.loop.call_soon_threadsafe(_wake, self.woken)
        except RuntimeError:
            return False
        return True


class FairQueue(Generic[RequestT, GrantT]):
    """A queue of requests for a limited resource.

    Args:
        lock: guards the grants. It must be reentrant: the garbage collector may end a forgotten
            coroutine, which returns its grant, in a thread that holds the lock.
        serve: returns the grant of a request now, or None if it must wait. Called with the lock
            held.
        release: undoes `serve` for a waiter that is gone before it could use its grant. Likewise.
    """

    def __init__(
        self,
        lock: AbstractContextManager[bool],
        serve: Callable[[RequestT], GrantT | None],
        release: Callable[[GrantT], None],
    ) -> None:
        self._lock = lock
        self._serve = serve
        self._release = release
        self._waiters: OrderedDict[_Waiter[RequestT, GrantT], None] = OrderedDict()
        self._serving = self._serve_again = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def get(self, request: RequestT) -> GrantT:
        """Return the grant of `request` once it is its turn. A cancelled caller holds nothing."""
        with self._lock:
            if not self._waiters and (grant := self._serve(request)) is not None:
                return grant
            waiter: _Waiter[RequestT, GrantT] = _Waiter(request)
            self._waiters[waiter] = None
        try:
            await waiter.woken
        except BaseException:  # cancelled, or dropped by a closed loop (GeneratorExit)
            self._remove(waiter)
            raise
        assert waiter.grant is not None
        return waiter.grant

    def serve_waiting(self) -> None:
        """Serve waiters from the front while possible. Called with the lock held, after a
        change.
        """
        self._serve_again = True
        # entered by the garbage collector during a move: the outer move goes round again
        if self._serving:
            return
        self._serving = True
        try:
            while self._serve_again:
                self._serve_again = False
                while self._waiters and self._serve_first():
                    pass
        finally:
            self._serving = False

    def dismiss(self, matches: Callable[[RequestT], bool], grant: Callable[[], GrantT]) -> None:
        """Give each of these waiters `grant`, at any position. Called with the lock held."""
        for waiter in [waiter for waiter in tuple(self._waiters) if matches(waiter.request)]:
            self._give(waiter, grant())
        self.serve_waiting()

    def _serve_first(self) -> bool:
        waiter = next(iter(self._waiters))
        grant = self._serve(waiter.request)
        if grant is None:
            return False
        self._give(waiter, grant)
        return True

    def _give(self, waiter: _Waiter[RequestT, GrantT], grant: GrantT) -> None:
        self._waiters.pop(waiter, None)
        waiter.grant = grant
        if not waiter.wake():
            waiter.grant = None
            self._release(grant)

    def _remove(self, waiter: _Waiter[RequestT, GrantT]) -> None:
        with self._lock:
            self._waiters.pop(waiter, None)
            grant, waiter.grant = waiter.grant, None
            if grant is not None:
                self._release(grant)
            self.serve_waiting()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)

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

WishT = TypeVar("WishT")
GrantT = TypeVar("GrantT")


class _Waiter(Generic[WishT, GrantT]):
    """A waiter in its own loop."""

    def __init__(self, wish: WishT) -> None:
        self.wish = wish
        self.grant: GrantT | None = None
        self.loop = asyncio.get_running_loop()
        self.called: asyncio.Future[None] = self.loop.create_future()

    def call(self) -> bool:
        """Wake the waiter; False if its loop is closed, so that it never wakes."""
        try:
            self.loop.call_soon_threadsafe(_wake, self.called)
        except RuntimeError:
            return False
        return True


class FairQueue(Generic[WishT, GrantT]):
    """A queue of requests for a limited resource.

    Args:
        lock: guards the grants. It must be reentrant: the garbage collector may end a forgotten
            coroutine, which returns its grant, in a thread that holds the lock.
        serve: returns the grant of a request now, or None if it must wait. Called with the lock
            held.
        take_back: undoes `serve` for a waiter that is gone before it could use its grant. Likewise.
    """

    def __init__(
        self,
        lock: AbstractContextManager[bool],
        serve: Callable[[WishT], GrantT | None],
        take_back: Callable[[GrantT], None],
    ) -> None:
        self._lock = lock
        self._serve = serve
        self._take_back = take_back
        self._waiters: OrderedDict[_Waiter[WishT, GrantT], None] = OrderedDict()
        self._moving = self._again = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def get(self, wish: WishT) -> GrantT:
        """Return the grant of `wish` once it is its turn. A cancelled caller holds nothing."""
        with self._lock:
            if not self._waiters and (grant := self._serve(wish)) is not None:
                return grant
            waiter: _Waiter[WishT, GrantT] = _Waiter(wish)
            self._waiters[waiter] = None
        try:
            await waiter.called
        except BaseException:  # cancelled, or dropped by a closed loop (GeneratorExit)
            self._leave(waiter)
            raise
        assert waiter.grant is not None
        return waiter.grant

    def move(self) -> None:
        """Serve waiters from the front while possible. Called with the lock held, after a
        change.
        """
        self._again = True
        # entered by the garbage collector during a move: the outer move goes round again
        if self._moving:
            return
        self._moving = True
        try:
            while self._again:
                self._again = False
                while self._waiters and self._serve_first():
                    pass
        finally:
            self._moving = False

    def dismiss(self, whom: Callable[[WishT], bool], grant: Callable[[], GrantT]) -> None:
        """Give each of these waiters `grant`, at any position. Called with the lock held."""
        for waiter in [waiter for waiter in tuple(self._waiters) if whom(waiter.wish)]:
            self._hand(waiter, grant())
        self.move()

    def _serve_first(self) -> bool:
        waiter = next(iter(self._waiters))
        grant = self._serve(waiter.wish)
        if grant is None:
            return False
        self._hand(waiter, grant)
        return True

    def _hand(self, waiter: _Waiter[WishT, GrantT], grant: GrantT) -> None:
        self._waiters.pop(waiter, None)
        waiter.grant = grant
        if not waiter.call():
            waiter.grant = None
            self._take_back(grant)

    def _leave(self, waiter: _Waiter[WishT, GrantT]) -> None:
        with self._lock:
            self._waiters.pop(waiter, None)
            grant, waiter.grant = waiter.grant, None
            if grant is not None:
                self._take_back(grant)
            self.move()


def _wake(called: asyncio.Future[None]) -> None:
    if not called.done():
        called.set_result(None)

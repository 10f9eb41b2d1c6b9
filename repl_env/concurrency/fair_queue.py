"""`FairQueue`: a queue of coroutines, of any event loops in any threads, that wait for their turn.

First come, first served, and nobody overtakes: whoever asks for much is not starved by those who
ask for little. What is free is handed to the first in the line, not put up for whoever is quickest.
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
    """One that waits: in its own loop, until it has its grant."""

    def __init__(self, wish: WishT) -> None:
        self.wish = wish
        self.grant: GrantT | None = None
        self.loop = asyncio.get_running_loop()
        self.called: asyncio.Future[None] = self.loop.create_future()

    def call(self) -> bool:
        """Wake it; False if its loop is closed and it will never wake."""
        try:
            self.loop.call_soon_threadsafe(_wake, self.called)
        except RuntimeError:
            return False
        return True


class FairQueue(Generic[WishT, GrantT]):
    """Who waits for what others hold.

    Args:
        lock: guards what is granted. It must be reentrant: the garbage collector may end a
            forgotten coroutine, which gives back what it holds, in a thread that has the lock.
        serve: what the wish gets now; None if it must wait. Called with the lock held.
        take_back: undoes `serve`, for one that is gone before it could use its grant. Likewise.
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
        """What `wish` gets, once it is its turn. A caller that is cancelled holds nothing."""
        with self._lock:
            if not self._waiters and (grant := self._serve(wish)) is not None:
                return grant
            waiter: _Waiter[WishT, GrantT] = _Waiter(wish)
            self._waiters[waiter] = None
        try:
            await waiter.called
        except BaseException:  # cancelled, or forgotten by a loop that was closed (GeneratorExit)
            self._leave(waiter)
            raise
        assert waiter.grant is not None
        return waiter.grant

    def move(self) -> None:
        """Serve those in front, as far as it goes. Called with the lock held, after a change."""
        self._again = True
        if self._moving:  # by the garbage collector, in the midst of a move: that goes round again
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
        """Give each of those a `grant`, wherever they stand. Called with the lock held."""
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

"""Sessions made ahead of time, unconfigured, so that taking one costs a round trip."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .zygote.links import Links

# Sessions that were given back are kept beside those that are made ahead: 3 MB each, and for so
# many clients who come and go at the same time nothing need be made.
_GIVEN_BACK = 8


class NoneReady(Exception):
    """No session could be had without waiting."""


class Pool:
    """Keeps `size` fresh sessions ready; a thread refills it after each that is taken."""

    def __init__(self, size: int, spawn: Callable[[], Links], *, after: int = 0) -> None:
        """`after`: so many are asked for before any is made, 0 to begin with all that there are to
        be. Whatever `spawn` raises is raised by that.
        """
        self._size = size
        self._spawn = spawn
        self._ready: deque[Links] = deque()
        self._changed = threading.Condition()
        self._left_alone = after
        self._making = self._claimed = False  # whether one is made, and somebody waits for it
        self._closed = False
        self._thread = threading.Thread(target=self._refill, name="repl-pool", daemon=True)
        try:
            for _ in range(0 if after else size):
                self._ready.append(spawn())
        except BaseException:
            for links in self._ready:
                links.close()
            raise
        self._thread.start()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def ready(self) -> tuple[Links, ...]:
        """Those that were not taken yet."""
        return tuple(self._ready)

    def take(self, fits: Callable[[Links], bool] | None = None) -> Links | None:
        """A ready session, or None while there is none, or the first one does not fit."""
        with self._changed:
            self._ask()
            if not self._ready or (fits is not None and not fits(self._ready[0])):
                return None
            return self._ready.popleft()

    def take_or_wait(self) -> Links | None:
        """As `take`; one that is being made already is waited for, if nobody else does.

        It is there sooner than another one, for which the template has no time before.
        """
        with self._changed:
            self._ask()
            if not self._ready and self._making and not self._claimed:
                self._claimed = True
                try:
                    self._changed.wait_for(lambda: self._ready or not self._making)
                finally:
                    self._claimed = False
                self._changed.notify_all()  # for one has to be made in its place
            return self._ready.popleft() if self._ready else None

    @property
    def wants_more(self) -> bool:
        """Whether one that was taken, and not used, is kept for somebody else."""
        return len(self._ready) < self._size + _GIVEN_BACK

    def give_back(self, links: Links) -> bool:
        """Keep it; False once this is closed."""
        with self._changed:
            if self._closed:
                return False
            self._ready.append(links)
            self._changed.notify_all()
        return True

    def close(self) -> tuple[Links, ...]:
        """Stop refilling; the sessions that were left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            left = self.ready
            self._ready.clear()
        return left

    def _ask(self) -> None:
        self._left_alone = max(0, self._left_alone - 1)
        self._changed.notify_all()

    def _refill(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._left_alone or len(self._ready) >= self._size):
                    self._changed.wait()
                if self._closed:
                    return
                self._making = True
            try:
                links = self._spawn()
            # Boundary: whatever it is, nobody is here to meet it, and others wait for this thread.
            except Exception:  # noqa: BLE001
                # The next caller makes its own session, and meets the error where it can be seen.
                # Then this is tried again: a limit of the host's may have been passed for a moment.
                with self._changed:
                    self._making = False
                    self._changed.notify_all()
                    if not self._closed:
                        self._changed.wait()
                continue
            with self._changed:
                self._making = False
                self._ready.append(links)
                self._changed.notify_all()

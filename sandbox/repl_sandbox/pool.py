"""Sessions made ahead of time, unconfigured, so that taking one costs a round trip."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .errors import SandboxError
from .zygote.links import Links


class NoneReady(Exception):
    """No session could be had without waiting."""


class Pool:
    """Keeps `size` fresh sessions ready; a thread refills it after each that is taken."""

    def __init__(self, size: int, spawn: Callable[[], Links]) -> None:
        self._size = size
        self._spawn = spawn
        self._ready: deque[Links] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._refill, name="repl-pool", daemon=True)
        try:
            for _ in range(size):
                self._ready.append(spawn())
        except BaseException:
            for links in self._ready:
                links.close()
            raise
        self._thread.start()

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, fits: Callable[[Links], bool] | None = None) -> Links | None:
        """A ready session, or None while there is none, or the first one does not fit."""
        with self._changed:
            self._changed.notify()
            if not self._ready or (fits is not None and not fits(self._ready[0])):
                return None
            return self._ready.popleft()

    def close(self) -> list[Links]:
        """Stop refilling; the sessions that were left."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        return list(self._ready)

    def _refill(self) -> None:
        while True:
            with self._changed:
                while not self._closed and len(self._ready) >= self._size:
                    self._changed.wait()
                if self._closed:
                    return
            try:
                links = self._spawn()
            except (SandboxError, OSError):
                # The next caller makes its own session, and meets the error where it can be seen.
                # Then this is tried again: a limit of the host's may have been passed for a moment.
                with self._changed:
                    if not self._closed:
                        self._changed.wait()
                continue
            with self._changed:
                self._ready.append(links)

"""`HostThreads`: threads for plain host functions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class HostThreads:
    """At most `max_threads` threads, whose names begin with `name`; each starts when none is idle.

    The process can end while they work. It would wait for those of a `ThreadPoolExecutor`, so a
    Ctrl-C during a blocking call would have to wait for its end.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = self._idle = 0
        self._closed = False

    def do(self, work: Callable[[], None]) -> None:
        """Run `work`, which raises nothing, in a thread; after `close` it is dropped.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) >= self._idle and self._count < self._max_threads:
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._count += 1
                self._idle += 1  # until it takes its first work
            self._waiting.append(work)
            self._changed.notify()

    def close(self) -> None:
        """Drop the work that waits. Threads end after the work in progress, and are not waited
        for.
        """
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # releases the work while the thread waits
            with self._changed:
                self._idle += 1

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft()

"""`RunningCall`: one call in progress of a host function, which can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RunningCall:
    """A call in progress of a host function, with `size` bytes of arguments.

    If the caller leaves, a coroutine is cancelled, wherever it runs; a plain function that has not
    begun never does, and one that has goes on.
    """

    __slots__ = ("_lock", "_stop", "ended", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.ended = False
        self._stop: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Set the function that stops the call; it is called at once if the call was ended
        meanwhile.
        """
        with self._lock:
            if not self.ended:
                self._stop = stop
                return
        stop()

    def end(self) -> None:
        """Stop the call: no caller waits for it any more. From any thread; idempotent."""
        with self._lock:
            self.ended = True
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()

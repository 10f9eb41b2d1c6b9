"""`ReadySessions`: sessions that start ahead of time, unconfigured, so that acquiring one costs a
round trip.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from ..zygote.client.session_links import SessionLinks

# The number of returned sessions that are kept besides those started ahead: 3 MB each. As many
# clients can come and go at the same time without a new session.
_MAX_RETURNED = 8


class ReadySessions:
    """Up to `size` sessions that were requested and not waited for; `fill` requests the missing
    ones.

    Starting a session is one message to the zygote, so no thread does it: the caller that takes a
    session requests the next one.
    """

    def __init__(self, size: int, begin: Callable[[], SessionLinks], *, after: int = 0) -> None:
        """`after`: the number of sessions to be taken before the first is started ahead of time."""
        self._size = size
        self._begin = begin
        self._lock = threading.Lock()
        self._sessions: deque[SessionLinks] = deque()
        self._starting = 0
        self._skip = after
        self._closed = False

    def __iter__(self) -> Iterator[SessionLinks]:
        return iter(tuple(self._sessions))

    def take(self) -> SessionLinks | None:
        """The session that was started first; None if there is none."""
        with self._lock:
            self._skip = max(0, self._skip - 1)
            return self._sessions.popleft() if self._sessions else None

    def fill(self) -> None:
        """Start the missing sessions. Raises what `begin` raises."""
        while self._claim_one():
            try:
                links = self._begin()
            except BaseException:
                with self._lock:
                    self._starting -= 1
                raise
            with self._lock:
                self._starting -= 1
                is_open = not self._closed
                if is_open:
                    self._sessions.append(links)
            if not is_open:
                links.close()

    @property
    def is_short(self) -> bool:
        """True if sessions are missing."""
        missing = self._size - len(self._sessions) - self._starting
        return missing > 0 and not (self._closed or self._skip)

    @property
    def wants_more(self) -> bool:
        """True if a session that was acquired, and not used, is kept for another caller."""
        return len(self._sessions) < self._size + _MAX_RETURNED

    def give_back(self, links: SessionLinks) -> bool:
        """Keep the session, the first to be taken next, because it is ready; False once this is
        closed.
        """
        with self._lock:
            if not self._closed:
                self._sessions.appendleft(links)
            return not self._closed

    def close(self) -> tuple[SessionLinks, ...]:
        """Start no more sessions; return the remaining ones."""
        with self._lock:
            self._closed = True
            unused = tuple(self._sessions)
            self._sessions.clear()
        return unused

    def _claim_one(self) -> bool:
        with self._lock:
            claimed = self.is_short
            self._starting += claimed
        return claimed

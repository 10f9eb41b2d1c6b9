"""Sessions begun ahead of time, unconfigured, so that taking one costs a round trip."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from ..zygote.client.session_links import SessionLinks

# Sessions that were given back are kept beside those that are begun ahead: 3 MB each, and for so
# many clients who come and go at the same time nothing need be made.
_GIVEN_BACK = 8


class ReadySessions:
    """Up to `size` sessions that were begun and not waited for; `fill` begins those that lack.

    Beginning a session is one message to the zygote, so no thread does it: the caller who takes a
    session has the next one begun.
    """

    def __init__(self, size: int, begin: Callable[[], SessionLinks], *, after: int = 0) -> None:
        """`after`: so many are asked for before any is begun."""
        self._size = size
        self._begin = begin
        self._lock = threading.Lock()
        self._ahead: deque[SessionLinks] = deque()
        self._beginning = 0
        self._left_alone = after
        self._closed = False

    def __iter__(self) -> Iterator[SessionLinks]:
        return iter(tuple(self._ahead))

    def take(self) -> SessionLinks | None:
        """The session that was begun first; None if there is none."""
        with self._lock:
            self._left_alone = max(0, self._left_alone - 1)
            return self._ahead.popleft() if self._ahead else None

    def fill(self) -> None:
        """Begin the sessions that lack. Raises what `begin` raises."""
        while self._claims_one():
            try:
                links = self._begin()
            except BaseException:
                with self._lock:
                    self._beginning -= 1
                raise
            with self._lock:
                self._beginning -= 1
                kept = not self._closed
                if kept:
                    self._ahead.append(links)
            if not kept:
                links.close()

    @property
    def lacks(self) -> bool:
        """Whether `fill` has something to do."""
        missing = self._size - len(self._ahead) - self._beginning
        return missing > 0 and not (self._closed or self._left_alone)

    @property
    def wants_more(self) -> bool:
        """Whether a session that was taken, and not used, is kept for another caller."""
        return len(self._ahead) < self._size + _GIVEN_BACK

    def give_back(self, links: SessionLinks) -> bool:
        """Keep the session, and hand it out first, for it is there; False once this is closed."""
        with self._lock:
            if not self._closed:
                self._ahead.appendleft(links)
            return not self._closed

    def close(self) -> tuple[SessionLinks, ...]:
        """Begin no more; the sessions that were left."""
        with self._lock:
            self._closed = True
            left = tuple(self._ahead)
            self._ahead.clear()
        return left

    def _claims_one(self) -> bool:
        with self._lock:
            claims = self.lacks
            self._beginning += claims
        return claims

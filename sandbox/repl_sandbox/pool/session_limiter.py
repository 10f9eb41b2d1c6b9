"""`SessionLimiter`: the open sessions of a sandbox, and the limit of their number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import SandboxError
from ..session.core import Core


class SessionLimiter:
    """At most `max_sessions` open sessions and branches; None: any number.

    Iterating gives the open ones.

    A session counts before it is made, because others may be made at the same time.
    """

    def __init__(self, max_sessions: int | None) -> None:
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._open: dict[int, Core] = {}
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Core]:
        return iter(list(self._open.values()))

    @property
    def is_unused(self) -> bool:
        """True if no session is open or being made."""
        with self._lock:
            return not self._open and not self._reserved

    def take(self) -> None:
        """Count a session that will be made; raise SandboxError if the limit is reached."""
        with self._lock:
            if (
                self._max_sessions is not None
                and len(self._open) + self._reserved >= self._max_sessions
            ):
                raise SandboxError(
                    f"max_sessions={self._max_sessions} sessions are open; close one first"
                )
            self._reserved += 1

    def give_back(self) -> None:
        """Stop counting a session that could not be made."""
        with self._lock:
            self._reserved -= 1

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """As `take`; given back if the block raises."""
        self.take()
        try:
            yield
        except BaseException:
            self.give_back()
            raise

    def fill(self, core: Core) -> None:
        """Add the session that was counted before; it is open now."""
        with self._lock:
            self._reserved -= 1
            self._open[id(core)] = core

    def leave(self, core: Core) -> bool:
        """Remove a session; return whether it was among the open ones."""
        with self._lock:
            return self._open.pop(id(core), None) is not None

"""`LastValueCache`: keeps the last value made from a large object, so that callers share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

MadeT = TypeVar("MadeT")
# Immutable types: the same object has the same content.
GivenT = TypeVar("GivenT", str, bytes)


class LastValueCache(Generic[MadeT]):
    """The last value made from a text or bytes, which the cache holds with it."""

    def __init__(self) -> None:
        self._last: tuple[object, MadeT] | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[MadeT]] = {}

    def of(self, value: GivenT, make: Callable[[GivenT], MadeT]) -> MadeT:
        """Return the result of `make` for `value`: found, awaited, or made."""
        self._check_process()
        with self._lock:
            if self._last is not None and self._last[0] is value:
                return self._last[1]
            pending = self._pending.get(id(value))
            future = None if pending is not None else self._pending.setdefault(id(value), Future())
        if pending is not None:
            return pending.result()
        assert future is not None
        try:
            future.set_result(make(value))
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[id(value)]
                self._last = (value, future.result()) if future.exception() is None else None
        return future.result()

    def forget(self, matches: Callable[[MadeT], bool]) -> None:
        """Drop the value, if it is the cached one."""
        self._check_process()
        with self._lock:
            if self._last is not None and matches(self._last[1]):
                self._last = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()  # a fork: the thread that was making a value is not here

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
        self._made: tuple[object, MadeT] | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._making: dict[int, Future[MadeT]] = {}

    def of(self, given: GivenT, make: Callable[[GivenT], MadeT]) -> MadeT:
        """Return the result of `make` for `given`: found, awaited, or made."""
        self._check_process()
        with self._lock:
            if self._made is not None and self._made[0] is given:
                return self._made[1]
            making = self._making.get(id(given))
            ours = None if making is not None else self._making.setdefault(id(given), Future())
        if making is not None:
            return making.result()
        assert ours is not None
        try:
            ours.set_result(make(given))
        except BaseException as error:
            ours.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._making[id(given)]
                self._made = (given, ours.result()) if ours.exception() is None else None
        return ours.result()

    def forget(self, is_it: Callable[[MadeT], bool]) -> None:
        """Drop the value, if it is the cached one."""
        self._check_process()
        with self._lock:
            if self._made is not None and is_it(self._made[1]):
                self._made = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()  # a fork: the thread that was making a value is not here

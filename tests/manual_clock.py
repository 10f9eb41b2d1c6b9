"""A clock that a test advances, in place of the machine's."""

from __future__ import annotations


class Clock:
    """A function that returns `now`, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

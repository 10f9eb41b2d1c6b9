"""What a zygote makes for one session, and uses again for the next.

Most sessions of a template are alike: they have the same limits, and what is opened for each has
the same numbers, for those of the last are free again. So the objects that say so serve for many.
To make them anew is a hundred pages that the zygote writes to between two forks: each is copied,
and what it was before stays with the session that has it.
"""

from __future__ import annotations

from typing import TypeAlias

from .birth import Birth

Key: TypeAlias = tuple[object, ...]


class Cradle:
    """Of one zygote, whose sessions have namespaces of their own."""

    def __init__(self) -> None:
        self._left: Birth | None = None
        self._key: Key = ()

    def again(self, key: Key) -> Birth | None:
        """What the last session was told, made anew for one whose `key` is the same; else None.

        `leave` has to follow, or `made` and `leave`.
        """
        if key != self._key:
            self.forget()
        left, self._left = self._left, None
        return left if left is not None and left.again() else None

    def made(self, key: Key, birth: Birth) -> Birth:
        """`birth`, which sessions of this `key` are told."""
        self._key = key
        return birth

    def leave(self, birth: Birth) -> None:
        """The session is forked, or could not be."""
        birth.leave()
        self._left = birth

    def forget(self) -> None:
        """Have nothing for the next.

        In a fork of the zygote it is the parent's, whose sessions must not share a page with
        others.
        """
        left, self._left = self._left, None
        if left is not None:
            left.drop()

"""A chain of calls with blanks: arguments that have names until it is known what they are.

Laid out once, in a template, and filled in for each process that is forked from it. What is filled
in as it was before is not written, and so not copied.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from . import contexts
from .calls import Row
from .contexts import MARKS, Chain


class Form:
    """As a chain of `rows`, in memory of its own.

    `first` is the address of its first context, `chain` runs it.
    """

    def __init__(self, rows: Sequence[Row], saved: int, headroom: int, unblocked: int = 0) -> None:
        """`saved`, `headroom`, `unblocked`: as of `Chain`.

        Raises:
            OSError: as of `Chain`.
        """
        self.area = mmap.mmap(-1, contexts.size(len(rows), headroom), mmap.MAP_PRIVATE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.area))
        self.chain = Chain(self.address, len(rows), saved, headroom, unblocked)
        self.first = self.chain.first
        self._blanks: dict[str, list[ctypes.c_uint64]] = {}
        self._values: dict[str, int] = {}
        self._held: list[object] = []  # what is passed by its address
        for index, (function, *arguments) in enumerate(rows):
            names = [each for each in arguments if isinstance(each, str)]
            marks = dict(zip(names, MARKS, strict=False))
            passed = [marks[each] if isinstance(each, str) else each for each in arguments]
            self.chain.call(index, str(function), *map(self._number, passed))
            for name, mark in marks.items():
                self._blanks.setdefault(name, []).append(self.chain.word(index, mark))

    def _number(self, passed: int | bytes) -> int:
        if isinstance(passed, int):
            return passed
        text = ctypes.create_string_buffer(passed)
        self._held.append(text)
        return ctypes.addressof(text)

    def has(self, name: str) -> bool:
        """Whether there are arguments of this name."""
        return name in self._blanks

    def fill_in(self, name: str, value: int) -> None:
        """Let the arguments of this name be `value`."""
        if self._values.get(name) != value:
            self._values[name] = value
            for blank in self._blanks[name]:
                blank.value = value

    def where(self, name: str) -> int:
        """The address of an argument, for a call before it that writes there."""
        return ctypes.addressof(self._blanks[name][0])

"""Batches of system calls: rows of Python, laid out as the table that steps.c performs.

A batch stops at the first call that fails. Slots pass results of earlier rows to later ones.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from . import library

# steps.h, struct row: name, number, from_slots, exactly, keeps, least, tolerated, arguments.
_ROW: Final = struct.Struct("@PiBBhq4h6q")
_ARGUMENTS: Final = 6
_TOLERATED: Final = 4
_NO_SLOT: Final = -1
_MAX_RESULT: Final = (1 << 63) - 1
# As the least result: the call must fail, with a tolerated errno.
REFUSED: Final = _MAX_RESULT
# Raw pointers and masks have the highest bit set; a long has not.
_SIGN: Final = 1 << 63


class Slot(int):
    """The number of a word of memory that belongs to a batch."""


class Address(NamedTuple):
    """As an argument: the address of a slot's word."""

    slot: Slot


class Preset(NamedTuple):
    """Among rows: the value of a slot before the first call."""

    slot: Slot
    value: int


# Bytes and structures of ctypes are passed by their address.
Argument: TypeAlias = (
    "int | bytes | Slot | Address | ctypes.Structure | ctypes.Array[ctypes.c_char]"
)


class SyscallRow(NamedTuple):
    """One system call. `least`: the smallest successful result; `tolerated` errnos succeed too.

    With `exactly`, a larger result fails. `call` and `reason` are for the error: the name of the
    call, and the meaning of another result.
    """

    call: str
    number: int
    arguments: tuple[Argument, ...]
    keeps: Slot | None = None
    least: int = 0
    exactly: bool = False
    tolerated: tuple[int, ...] = ()
    reason: str = ""


Rows: TypeAlias = Iterable[SyscallRow | Preset]


class Failure(ctypes.Structure):
    """Reason that a batch stopped; `name` is that of the step, None if no step failed."""

    _fields_ = (("row", ctypes.c_long), ("error", ctypes.c_long), ("name", ctypes.c_char_p))


class Table(ctypes.Structure):
    """steps.h, struct batch."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_long),
        ("slots", ctypes.c_void_p),
        ("slot_count", ctypes.c_long),
        ("failure", Failure),
    )


class StepError(OSError):
    """A system call of a batch has failed; `step` is the name of its step."""

    def __init__(self, code: int, text: str, step: str) -> None:
        super().__init__(code, text)
        self.step = step


class SyscallBatch:
    """The rows of named steps. `slots` is the memory of their slots; `table` is for C."""

    def __init__(self, steps: Iterable[tuple[str, Rows]]) -> None:
        """Lay the rows out, in the order of `steps`."""
        self._referenced: list[object] = []  # objects that rows point to
        self._rows: list[SyscallRow] = []
        presets: list[Preset] = []
        named: list[tuple[int, SyscallRow]] = []
        for name, rows in steps:
            address = self._address_of(name.encode())
            for row in rows:
                if isinstance(row, Preset):
                    presets.append(row)
                else:
                    named.append((address, row))
        self._rows = [row for _, row in named]
        count = 1 + max([*_slots_of(self._rows), *(slot for slot, _ in presets)], default=-1)
        self.slots = (ctypes.c_long * count)()
        self._slots_at = ctypes.addressof(self.slots)
        for slot, value in presets:
            self.slots[slot] = _signed(value)
        packed = b"".join(self._packed(address, row) for address, row in named)
        self._packed_rows = ctypes.create_string_buffer(packed, len(packed) or 1)
        rows_at = ctypes.addressof(self._packed_rows)
        self.table = Table(rows_at, len(named), self._slots_at, count)

    def run(self) -> None:
        """Perform all rows. A row that a signal interrupts is repeated after the signal's handler.

        Raises:
            StepError: a row has failed; later rows were not performed.
        """
        run, table, first = _run(), self.table, 0
        while run(
            table.rows + first * _ROW.size,
            table.count - first,
            table.slots,
            table.slot_count,
            ctypes.byref(table.failure),
        ):
            first += table.failure.row
            table.failure.row = first
            if table.failure.error != errno.EINTR:
                raise self.error()

    def error(self, failure: Failure | None = None) -> StepError:
        """Return the error for a `failure` of these rows, by default that of the last run."""
        failure = self.table.failure if failure is None else failure
        step = (failure.name or b"").decode()
        if not step:
            return StepError(failure.error, "the table of system calls is corrupt", step)
        if failure.row < 0:
            return StepError(failure.error, os.strerror(failure.error), step)
        row = self._rows[failure.row]
        if failure.error == 0:
            return StepError(0, row.reason or f"{row.call}: an unexpected result", step)
        return StepError(failure.error, f"{row.call}: {os.strerror(failure.error)}", step)

    def __len__(self) -> int:
        return len(self._rows)

    def _packed(self, name: int, row: SyscallRow) -> bytes:
        from_slots, arguments = 0, []
        for index, argument in enumerate(row.arguments):
            if isinstance(argument, Slot):
                from_slots |= 1 << index
            arguments.append(self._passed(argument))
        arguments += [0] * (_ARGUMENTS - len(arguments))
        tolerated = (*row.tolerated, *[0] * (_TOLERATED - len(row.tolerated)))
        keeps = _NO_SLOT if row.keeps is None else row.keeps
        head = name, row.number, from_slots, row.exactly, keeps, row.least
        return _ROW.pack(*head, *tolerated, *arguments)

    def _passed(self, argument: Argument) -> int:
        if isinstance(argument, int):
            return _signed(argument)
        if isinstance(argument, Address):
            return self._slots_at + argument.slot * ctypes.sizeof(ctypes.c_long)
        return self._address_of(argument)

    def _address_of(self, value: bytes | ctypes.Structure | ctypes.Array[ctypes.c_char]) -> int:
        buffer = ctypes.create_string_buffer(value) if isinstance(value, bytes) else value
        self._referenced.append(buffer)
        return ctypes.addressof(buffer)


def _slots_of(rows: Iterable[SyscallRow]) -> Iterator[int]:
    for row in rows:
        if row.keeps is not None:
            yield row.keeps
        for argument in row.arguments:
            if isinstance(argument, Slot):
                yield argument
            elif isinstance(argument, Address):
                yield argument.slot


def _signed(value: int) -> int:
    """Return `value` as a C long."""
    return value - 2 * _SIGN if value >= _SIGN else value


def perform(rows: Rows, step: str = "") -> None:
    """Perform `rows` outside of a recipe.

    Raises:
        StepError: a row has failed.
    """
    SyscallBatch([(step or "template", rows)]).run()


@cache
def _run() -> Any:
    word = ctypes.c_long
    pointer = ctypes.c_void_p
    return library.load().function("run_steps", word, pointer, word, pointer, word, pointer)

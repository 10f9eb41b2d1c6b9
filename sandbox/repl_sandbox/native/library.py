"""The native library: its C files and their hash, its loader, batches of system calls for it."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import IsolationError

# The C files of this folder, their compiler flags, and the hash of both.
#
# The loader and the build import this, on any system.

NATIVE_FOLDER = os.path.dirname(os.path.abspath(__file__))
MACHINES = ("x86_64", "aarch64")
# Freestanding: no libc is linked or called, so that one library serves glibc, musl and every
# interpreter. `-z defs` makes a call of a missing function (memcpy by the compiler, say) an error
# of the build and not of a session.
FLAGS = (
    *("-std=c11", "-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin"),
    *("-fno-stack-protector", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *("-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,-z,now", "-Wl,--build-id=none", "-Wl,-s"),
)
# Otherwise GCC calls functions of its own library for atomic operations.
MACHINE_FLAGS = {"aarch64": ("-mno-outline-atomics",)}


def file_name(machine: str) -> str:
    """Return the name of the library for a machine, named as by uname(2)."""
    return f"repl_native-{machine}.so"


def c_files(folder: str = NATIVE_FOLDER) -> list[str]:
    """Return the sorted names of the files to compile."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".c"))


def source_hash(folder: str = NATIVE_FOLDER) -> str:
    """Return the hash of all C files, headers and flags: a library with another one is stale."""
    digest = hashlib.sha256(repr((FLAGS, MACHINE_FLAGS)).encode())
    for name in sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h"))):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


# Loader of the native library beside this file: checked, and loaded once per process.
#
# The check reads the file before the dynamic loader maps it: no code of a stale, foreign or
# truncated library runs.

REMEDY = (
    "Run `make native` in a checkout; otherwise install repl-env again, from a wheel for Linux on "
    "x86_64 or aarch64, or from source"
)
_BUILD = re.compile(rb"repl-env native build ([0-9a-f]{32}) by ([^\0]+)\0")
# elf(5): e_machine of the header of a 64-bit little-endian file.
_ELF = b"\x7fELF\x02\x01"
_ELF_HEADER = 64
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The library in this process: its file, the hash of its sources, and its compiler."""

    path: str
    build_hash: str
    compiler: str
    dll: ctypes.PyDLL

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return the C function `name` with its types, as ctypes describes them.

        Raises:
            IsolationError: the library has no such function.
        """
        try:
            function = self.dll[name]
        except AttributeError as error:
            raise _failed(f"{self.path} has no function {name}") from error
        function.restype, function.argtypes = result, arguments
        return function


@cache
def load() -> NativeLibrary:
    """Load the library of this machine; later calls return the same object.

    Raises:
        IsolationError: the step "native". The library is absent, was built for another machine or
            from other sources, is truncated, or the dynamic loader refuses it.
    """
    machine = os.uname().machine
    path = os.path.join(NATIVE_FOLDER, file_name(machine))
    try:
        build_hash, compiler = read_build(path, machine)
        return NativeLibrary(path, build_hash, compiler, ctypes.PyDLL(path))
    except OSError as error:
        raise _failed(str(error)) from error


def read_build(path: str, machine: str) -> tuple[str, str]:
    """Return the build hash and the compiler of the library at `path`.

    Raises:
        IsolationError: the file is no whole library for `machine` of the C files beside this one.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read()
    _check_elf(path, content, machine)
    if (build := _BUILD.search(content)) is None:
        raise _failed(f"{path} is not the library of repl-env")
    build_hash, compiler = build[1].decode(), build[2].decode(errors="replace").strip()
    if (expected := source_hash()) != build_hash:
        raise _failed(
            f"{path} is stale: its build hash is {build_hash}, that of the C files {expected}"
        )
    return build_hash, compiler


def _check_elf(path: str, content: bytes, machine: str) -> None:
    if not content.startswith(_ELF) or len(content) < _ELF_HEADER:
        raise _failed(f"{path} is not a library for 64-bit Linux")
    (number,) = struct.unpack_from("<H", content, 18)
    if number != _ELF_MACHINES.get(machine):
        raise _failed(f"{path} was not built for {machine}")
    # The section headers end the file; a loader that maps a shorter file gets SIGBUS.
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    if start + size * count > len(content):
        raise _failed(f"{path} is truncated")


def _failed(message: str) -> IsolationError:
    return IsolationError("native", "native", message, REMEDY)


# Batches of system calls: rows of Python, laid out as the table that steps.c performs.
#
# A batch stops at the first call that fails. Slots pass results of earlier rows to later ones.

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


class BatchStructure(ctypes.Structure):
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
        self.table = BatchStructure(rows_at, len(named), self._slots_at, count)

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
    return load().function("run_steps", word, pointer, word, pointer, word, pointer)

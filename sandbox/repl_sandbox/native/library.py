"""Loader of the native library beside this file: checked, and loaded once per process.

The check reads the file before the dynamic loader maps it: no code of a stale, foreign or truncated
library runs.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import IsolationError
from . import sources

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
    path = os.path.join(sources.FOLDER, sources.file_name(machine))
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
    if (expected := sources.build_hash()) != build_hash:
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

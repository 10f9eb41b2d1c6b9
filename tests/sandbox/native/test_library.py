"""The native library is loaded only if it fits: this machine, these C files, whole."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_sandbox.errors import IsolationError
from repl_sandbox.native.library import NATIVE_FOLDER, file_name, load

NAME = file_name(os.uname().machine)
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from repl_sandbox.errors import IsolationError
from repl_sandbox.native.library import load
try:
    load()
except IsolationError as error:
    print(error.step, error.message, error.remedy, sep="\\n")
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A source root with a copy of the native core and its library."""
    package = Path(NATIVE_FOLDER).parent
    copy = tmp_path / "repl_sandbox"
    shutil.copytree(package / "native", copy / "native")
    for name in ("__init__.py", "errors.py", "display.py"):
        shutil.copy(package / name, copy)
    return tmp_path


def loaded(engine: Path) -> list[str]:
    """Return step, message and remedy of a refusal in a fresh process; nothing if it loads."""
    command = [sys.executable, "-I", "-c", LOAD, str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def append(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write("\n")

    return change


def put(start: int, content: bytes) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with (folder / NAME).open("r+b") as file:
            file.seek(start)
            file.write(content)

    return change


def cut(size: Callable[[int], int]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        library = folder / NAME
        os.truncate(library, size(library.stat().st_size))

    return change


def replaced_by_a_folder(folder: Path) -> None:
    (folder / NAME).unlink()
    (folder / NAME).mkdir()


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda folder: (folder / NAME).unlink(), "No such file"),
    "a folder": (replaced_by_a_folder, "Is a directory"),
    "a changed C file": (append("build_hash.c"), "is stale"),
    "a changed header": (append("export.h"), "is stale"),
    "a new C file": (lambda folder: (folder / "more.c").touch(), "is stale"),
    "a C file that went": (lambda folder: (folder / "build_hash.c").unlink(), "is stale"),
    "another machine": (put(18, (8).to_bytes(2, "little")), "was not built for"),
    "32 bits": (put(4, b"\1"), "is not a library for 64-bit Linux"),
    "no library": (put(0, b"#!/bin/sh"), "is not a library for 64-bit Linux"),
    "empty": (cut(lambda whole: 0), "is not a library for 64-bit Linux"),
    "a header alone": (cut(lambda whole: 64), "truncated"),
    "half of it": (cut(lambda whole: whole // 2), "truncated"),
    "all but the last byte": (cut(lambda whole: whole - 1), "truncated"),
    "a foreign library": (
        lambda folder: shutil.copy(sys.modules["_ctypes"].__file__, folder / NAME),
        "is not the library of repl-env",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_library_that_does_not_fit_is_an_isolation_error(engine: Path, case: str) -> None:
    assert loaded(engine) == []  # the same copy, unchanged

    change, expected = BAD[case]
    change(engine / "repl_sandbox" / "native")
    step, message, remedy = loaded(engine)

    assert step == "native"
    assert expected in message
    assert NAME in message
    assert "make native" in remedy


def test_a_missing_function_is_an_isolation_error() -> None:
    with pytest.raises(IsolationError, match="has no function nothing_like_it") as caught:
        load().function("nothing_like_it", ctypes.c_long)

    assert caught.value.step == "native"


def test_the_library_is_loaded_once() -> None:
    assert load() is load()

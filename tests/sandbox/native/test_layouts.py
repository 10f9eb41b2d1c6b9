"""Structures and numbers that C and Python both have are the same."""

from __future__ import annotations

import ctypes
import re
import struct
from pathlib import Path

import pytest

from repl_sandbox.jail.syscalls import ALLOW, REFUSE
from repl_sandbox.native import library
from tests.internals import native_structures, row_format

NATIVE = Path(library.NATIVE_FOLDER)
STRUCTURES = native_structures()


def layout_in_c(structure: str, count: int) -> list[int]:
    """Its size, and the offsets of its fields, of which there are `count`."""
    return list((ctypes.c_int * (1 + count)).in_dll(library.load().dll, f"layout_of_{structure}"))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_has_one_layout(structure: str) -> None:
    python = STRUCTURES[structure]
    offsets = [field.offset for field in vars(python).values() if hasattr(field, "offset")]
    assert layout_in_c(structure, len(offsets)) == [ctypes.sizeof(python), *sorted(offsets)]


def test_a_row_of_a_batch_has_one_layout() -> None:
    form = row_format().format
    codes = re.findall(r"\d*[A-Za-z]", form)
    offsets = [
        struct.calcsize(f"@{''.join(codes[:index])}0{code[-1]}") for index, code in enumerate(codes)
    ]
    assert layout_in_c("row", len(codes)) == [row_format().size, *offsets]


def test_every_structure_that_a_header_says_python_lays_out_is_compared() -> None:
    headers = (file.read_text() for file in NATIVE.glob("*.h"))
    laid_out = [text for text in headers if "laid out by native/" in text.partition("*/")[0]]
    found = {
        name for text in laid_out for name in re.findall(r"^struct (\w+) \{", text, re.MULTILINE)
    }
    assert found | {"pollfd"} == {*STRUCTURES, "row"}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_numbers_of_system_calls_are_those_of_the_table(arch: str) -> None:
    kernel = (NATIVE / "kernel.h").read_text()
    section = kernel.partition(f"defined(__{arch}__)")[2].partition("};")[0]
    numbers = {name.lower(): int(text) for name, text in re.findall(r"SYS_(\w+) = (\d+)", section)}
    assert len(numbers) > 35
    rows = (*ALLOW, *REFUSE)
    assert numbers == {row.name: row.number(arch) for row in rows if row.name in numbers}

"""Memfds that go to a session are sealed, even while the kernel uses them."""

from __future__ import annotations

import mmap
import os

import pytest

from repl_sandbox.native.libc import seal
from repl_sandbox.session.core import memfd


def test_a_sealed_file_in_memory_can_neither_be_written_nor_resized() -> None:
    fd, size = memfd("x" * 5000)
    try:
        assert size == 5000
        for change in (
            lambda: os.pwrite(fd, b"y", 0),
            lambda: os.ftruncate(fd, 0),
            lambda: os.ftruncate(fd, 10_000),
            lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()
        with mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as view:
            assert view[:] == b"x" * 5000
    finally:
        os.close(fd)


def test_sealing_does_not_wait_for_a_reader_of_a_page() -> None:
    """A mapping that could write makes F_SEAL_WRITE fail at once, as a page in use does later."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        with mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE):
            seal(fd)
    finally:
        os.close(fd)

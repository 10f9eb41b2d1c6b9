"""The shared memory of a process, as reported to its copy."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox.worker import shared_mappings


@pytest.mark.parametrize("kernel", ["searches", "tells all"])
def test_writable_shared_mappings_are_named(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "tells all":

        def refused(*arguments: Any) -> None:
            raise OSError(errno.ENOTTY, "before Linux 6.11")

        monkeypatch.setattr(shared_mappings.fcntl, "ioctl", refused)  # type: ignore[attr-defined]
    before = shared_mappings.lost(())
    path = tmp_path / "here w-s"
    path.write_bytes(bytes(mmap.PAGESIZE))
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, mmap.PAGESIZE) as shared, mmap.mmap(-1, mmap.PAGESIZE) as nameless:
        read_only = mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
        own = mmap.mmap(fd, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
        path.unlink()
        found = shared_mappings.lost(())
        assert shared[0] == nameless[0] == read_only[0] == own[0] == 0
        read_only.close()
        own.close()
    os.close(fd)
    named = sorted(found)
    for name in before:
        named.remove(name)
    files = ("", f" '{path}'")
    assert named == sorted(f"shared memory{file}, which is not copied" for file in files)
    assert shared_mappings.lost(()) == before


def test_many_mappings_are_counted() -> None:
    pieces = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(40)]
    found = shared_mappings.lost(())
    for piece in pieces:
        piece.close()
    assert len(found) == 21
    assert found[-1].endswith("more pieces of shared memory")

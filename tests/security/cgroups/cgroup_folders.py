"""The cgroups of this machine, and small limits for sessions."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Limits, Session
from repl_sandbox.host.cgroup_files import CgroupRoot, CgroupUnavailable, find
from tests.waiting import PATIENCE, eventually

FOUND = find()
needs_groups = pytest.mark.skipif(
    isinstance(FOUND, CgroupUnavailable),
    reason=f"no groups can be made here: {getattr(FOUND, 'reason', '')}",
)
MIB = 1 << 20
# The sum that the kernel holds a session to is then some 370 MiB.
SMALL = Limits(memory=64 * MIB, workspace=8 * MIB, processes=40, timeout=PATIENCE, grace=0.2)

FILL = (
    "import mmap\n"
    "def fill(mib):\n"
    "    block = mmap.mmap(-1, mib << 20)\n"
    "    for i in range(0, mib << 20, 4096): block[i] = 1\n"
    "    return block\n"
)


def folders() -> list[Path]:
    """The folders of sandboxes in every hierarchy."""
    assert isinstance(FOUND, CgroupRoot)
    return [path for folder in FOUND.folders for path in Path(folder).glob("repl-env-*-*")]


def of(pid: int) -> list[Path]:
    """The cgroups of one process's sandboxes. Cgroups of other processes come and go, and are not
    touched.
    """
    return [path for path in folders() if path.name.startswith(f"repl-env-{pid}-")]


def added(before: set[Path]) -> set[Path]:
    """The new cgroups of this process; the next sandbox removes leftovers."""
    return set(of(os.getpid())) - before


def take_away(folder: Path) -> None:
    """Remove a group; what has ended in it may be counted until it was switched out."""
    eventually(lambda: _is_removed(folder))


def _is_removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def layer(session: Session) -> Any:
    return next(layer for layer in session.isolation.layers if layer.name == "cgroup")

"""An interpreter for sessions that have no view of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import repl_sandbox

_PREFIXES = """
import sys
assert sys.version_info >= (3, 11)
print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sep="\\n")
"""


def _is_open(path: str) -> bool:
    """Whether everybody may read the directory `path` and pass through those above it."""
    return all(each.stat().st_mode & 0o5 == 0o5 for each in (Path(path), *Path(path).parents))


@pytest.fixture(scope="session")
def open_python() -> str:
    """An interpreter that every user may run: without a view of its own, a session needs one."""
    if os.geteuid() != 0:
        return sys.executable
    folder = str(Path(str(repl_sandbox.__file__)).parent)
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run(
                [path, "-c", _PREFIXES], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        if all(map(_is_open, [folder, *done.stdout.split("\n")[:-1]])):
            return path
    pytest.skip("no Python of at least 3.11, or no checkout, that every user may read")

"""An interpreter that every user may run, and one that has what a language policy needs.

A session without a view of its own is another user than root and reads the host's files, so an
interpreter below a closed home will not do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import repl_sandbox

_PLACES = ("/usr/bin/python3", "/usr/local/bin/python3")
_PREFIXES = """
import sys
assert sys.version_info >= (3, 11)
print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sep="\\n")
"""


def open_to_all() -> str | None:
    """An interpreter that the sessions of this user can read; None if there is none."""
    if os.geteuid() != 0:
        return sys.executable
    folder = str(Path(str(repl_sandbox.__file__)).parent)
    for path in (sys.executable, *_PLACES):
        try:
            done = subprocess.run(
                [path, "-c", _PREFIXES], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        if all(map(_is_open, [folder, *done.stdout.split("\n")[:-1]])):
            return path
    return None


def with_policies(folder: Path, options: Mapping[str, Any]) -> str | None:
    """An interpreter below `folder` that has RestrictedPython and that the user of `options` may
    run; None if there is none.
    """
    return with_package("RestrictedPython", folder, options)


def with_package(name: str, folder: Path, options: Mapping[str, Any]) -> str | None:
    """An interpreter below `folder` that has the pure package `name` and that the user of
    `options` may run; None if there is none.
    """
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).parent
    for number, python in enumerate(_PLACES):
        place = folder / str(number)
        asked = [python, "-m", "venv", "--without-pip", str(place)]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(asked, capture_output=True, check=True)
            (library,) = place.glob("lib/python3*/site-packages")
            ignored = shutil.ignore_patterns("__pycache__")
            for part in (source, *_metadata(source)):
                shutil.copytree(part, library / part.name, ignore=ignored)
            # The user of `options` cannot: otherwise each process would compile the modules that it
            # imports.
            compiling = [str(place / "bin/python"), "-I", "-m", "compileall", "-q", str(library)]
            subprocess.run(compiling, check=True, cwd="/", capture_output=True)
            made = [str(place / "bin/python"), "-I", "-c", f"import {name}"]
            subprocess.run(made, check=True, cwd="/", capture_output=True, **options)
            return made[0]
    return None


def _metadata(package: Path) -> list[Path]:
    every = package.parent.glob("*.dist-info")
    return [path for path in every if path.name.lower().startswith(f"{package.name.lower()}-")]


def _is_open(path: str) -> bool:
    """Whether everybody may read the directory `path` and pass through those above it."""
    return all(each.stat().st_mode & 0o5 == 0o5 for each in (Path(path), *Path(path).parents))

"""An interpreter that every user may run, and one that has what policies and checkpoints need.

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
from collections.abc import Mapping, Sequence
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


def with_packages(names: Sequence[str], folder: Path, options: Mapping[str, Any]) -> str | None:
    """An interpreter below `folder` that has the pure packages `names` and that the user of
    `options` may run; None if there is none.
    """
    sources = [_source(name) for name in names]
    if None in sources:
        return None
    parts = [part for source in sources if source for part in (source, *_metadata(source))]
    for number, python in enumerate(_PLACES):
        place = folder / str(number)
        asked = [python, "-m", "venv", "--without-pip", str(place)]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(asked, capture_output=True, check=True)
            (library,) = place.glob("lib/python3*/site-packages")
            ignored = shutil.ignore_patterns("__pycache__")
            for part in parts:
                shutil.copytree(part, library / part.name, ignore=ignored)
            # The user of `options` cannot: otherwise each process would compile the modules that it
            # imports.
            compiling = [str(place / "bin/python"), "-I", "-m", "compileall", "-q", str(library)]
            subprocess.run(compiling, check=True, cwd="/", capture_output=True)
            imports = f"import {', '.join(names)}"
            made = [str(place / "bin/python"), "-I", "-c", imports]
            subprocess.run(made, check=True, cwd="/", capture_output=True, **options)
            return made[0]
    return None


def _source(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return None if found is None or found.origin is None else Path(found.origin).parent


def _metadata(package: Path) -> list[Path]:
    every = package.parent.glob("*.dist-info")
    return [path for path in every if path.name.lower().startswith(f"{package.name.lower()}-")]


def _is_open(path: str) -> bool:
    """Whether everybody may read the directory `path` and pass through those above it."""
    return all(each.stat().st_mode & 0o5 == 0o5 for each in (Path(path), *Path(path).parents))

"""Places of the host that an interpreter needs: directories, and the links to its program."""

from __future__ import annotations

import os
import sys

from ...types import PACKAGE_DIR


def directories() -> dict[str, str]:
    """The directories that hold the interpreter, its libraries and this package.

    Both the names in use and the paths that they resolve to: a name may contain a symbolic link,
    which would lead nowhere in a view of its own, and libraries are found by either.
    """
    named = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, PACKAGE_DIR}
    candidates = named | {os.path.realpath(path) for path in named}
    covered = ("/usr/",)
    return {
        path: os.path.realpath(path)
        for path in sorted(candidates)
        if not f"{path}/".startswith(covered)
        and not any(path.startswith(f"{other}/") for other in candidates)
    }


def links(program: str) -> dict[str, str]:
    """Return the symbolic links that lead to `program`, each with its target.

    The program of a virtual environment is often a link to a link: to that of uv, pyenv or an
    operator, which leads to the interpreter. Code that runs `sys.executable` needs all of them.
    """
    found: dict[str, str] = {}
    place, names = "/", program.split("/")[::-1]
    while names:
        name = names.pop()
        path = os.path.normpath(f"{place}/{name}")
        if path in found or not os.path.islink(path):
            place = path
            continue
        found[path] = os.readlink(path)
        place = "/" if found[path].startswith("/") else place
        names += found[path].split("/")[::-1]
    return found

"""The native libraries that the wheel of a Space carries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from repl_sandbox.native import build
from repl_sandbox.native.library import MACHINES, file_name

# The machines that the hub runs Spaces on.
SPACES = "x86_64"
PATTERN = "native/repl_native-*.so"


def libraries() -> Iterator[tuple[str, bytes]]:
    """Name and content of each library that is here, and of the one for Spaces.

    The latter is compiled where it is not here, on other machines and systems.

    Raises:
        BuildError: it cannot be compiled.
        OSError: a file cannot be read.
    """
    for machine in MACHINES:
        name = file_name(machine)
        if build.refusal(build.FOLDER / name, machine) is None:
            yield name, (build.FOLDER / name).read_bytes()
        elif machine == SPACES:
            yield name, _compiled(machine)


def _compiled(machine: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "library.so")
        build.compile_library(machine, library)
        return library.read_bytes()

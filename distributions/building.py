"""Distributions of a checkout, built by the interpreter here.

Only a compiler may be fetched for it, where none here builds the native library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from repl_sandbox.native import build as native
from repl_sandbox.native.library import MACHINES

ROOT = Path(__file__).parents[1]
ANY = "any"


def build(kind: str, folder: Path, source: Path = ROOT, machine: str = "") -> None:
    """Build the distribution of the folder `source`; `kind` is "wheel" or "sdist".

    A wheel is for `machine`, by default this one; of "any" it is without the native library.
    """
    if not machine:
        machine = os.uname().machine if native.supported() else ANY
    if kind == "wheel" and machine != ANY:
        native.install_compiler(machine)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder.resolve())],
        cwd=source,
        env=os.environ | {"REPL_ENV_BUILD_FOR": machine},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist into `folder`; the source in it."""
    with tarfile.open(sdist) as archive:
        # Not an argument of extractall, which Python 3.11.2 of Debian 12 does not know yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / sdist.name.removesuffix(".tar.gz")


def build_wheels(folder: Path, source: Path = ROOT) -> None:
    """Build a wheel for each machine, and the one without the native library."""
    for machine in (*MACHINES, ANY):
        build("wheel", folder, source, machine)

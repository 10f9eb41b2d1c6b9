"""The wheels of an image, fetched for its Python by the Python here: `make wheelhouse`.

A build then needs no network, and installs what the locks name: each file is held to its hash.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .building import ROOT, build
from .locks import needed

LOCKS = (ROOT / "requirements.lock", ROOT / "docker" / "session.lock")
# Of glibc: the oldest that wheels are built for, to that of Debian 12, which images are built on.
_GLIBC = range(5, 37)
_OLDER_NAMES = ("manylinux1", "manylinux2010", "manylinux2014")


def fetch(lock: Path, version: str, machine: str, folder: Path) -> None:
    """Download the wheels of a lock."""
    minor = ".".join(version.split(".")[:2])
    platforms = [*_OLDER_NAMES, *(f"manylinux_2_{number}" for number in _GLIBC)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.writelines(needed(lock.read_text(encoding="utf-8"), version, machine))
        wanted.flush()
        pip(
            *("download", "--no-deps", "--only-binary=:all:", "--require-hashes"),
            *("--implementation=cp", f"--python-version={minor}"),
            *(f"--abi={abi}" for abi in (f"cp{minor.replace('.', '')}", "abi3", "none")),
            *(f"--platform={platform}_{machine}" for platform in platforms),
            *(f"--dest={folder}", f"--requirement={wanted.name}"),
        )


def pip(*arguments: str) -> None:
    """Run pip of this interpreter; it says itself what is wrong."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def main() -> int:
    """Fill the folder anew: an older wheel in it would be another input of the build."""
    parser = argparse.ArgumentParser(prog="python -m distributions.wheelhouse", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("version", help="of the image's Python, in full: 3.13.7")
    parser.add_argument("machine", help="x86_64 or aarch64")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    try:
        for lock in LOCKS:
            fetch(lock, given.version, given.machine, given.folder)
        build("wheel", given.folder, machine=given.machine)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())

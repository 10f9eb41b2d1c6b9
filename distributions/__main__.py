"""`make dist`: sdist, wheels and constraints.txt into dist/; each wheel is tried by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from repl_env.integrations.space import SPACES
from repl_sandbox.native.build import ZIG

from .building import ROOT, build, build_wheels, unpack
from .locks import constraints

DIST = ROOT / "dist"
DEMO = ROOT / "examples" / "demo.py"


def main() -> int:
    """Fill dist/; what an earlier call left there goes first, but for the wheelhouse."""
    DIST.mkdir(exist_ok=True)
    for pattern in ("*.whl", "*.tar.gz", "constraints.txt"):
        for file in DIST.glob(pattern):
            file.unlink()
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    (DIST / "constraints.txt").write_text(constraints(lock), encoding="utf-8")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _fill(Path(scratch))
    except subprocess.CalledProcessError as error:
        print(f"{error.output or ''}failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    for name in sorted(path.name for path in DIST.iterdir() if path.is_file()):
        print(f"dist/{name}")
    return 0


def _fill(scratch: Path) -> None:
    build("sdist", DIST)
    (sdist,) = DIST.glob("*.tar.gz")
    # Of the sdist: one that lacks a file would show here, and not where somebody builds from it.
    build_wheels(DIST, unpack(sdist, scratch))
    machine = os.uname().machine
    (wheel,) = DIST.glob(f"repl_env-*_{machine}.whl")
    python = _installed(wheel, scratch / "repl-env")
    if machine != SPACES:  # the packed wheel carries their library, which is compiled for it
        _run([python, "-m", "pip", "--quiet", "install", ZIG], scratch)
    _run([python, ROOT / "distributions" / "pack.py", DIST], scratch)
    (packed,) = DIST.glob("openenv_repl_env-*.whl")
    _installed(packed, scratch / "openenv-repl-env")


def _installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that has the wheel, and in which its demo has run."""
    _run([sys.executable, "-m", "venv", folder], folder.parent)
    python = folder / "bin" / "python"
    install = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    _run([python, *install, "--constraint", DIST / "constraints.txt", wheel], folder)
    _run([python, "-m", "pip", "--disable-pip-version-check", "check"], folder)
    _run([folder / "bin" / "repl-env", "--version"], folder)
    # A copy: the folder of a program is on its path, and the checkout must not be.
    demo = folder / DEMO.name
    shutil.copy(DEMO, demo)
    _run([python, demo], folder)
    return python


def _run(command: Sequence[str | Path], folder: Path) -> None:
    subprocess.run(
        command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


if __name__ == "__main__":
    sys.exit(main())

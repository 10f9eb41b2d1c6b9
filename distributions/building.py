"""Distributions of a checkout, built by the interpreter here: nothing is fetched for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(kind: str, folder: Path, source: Path = ROOT) -> None:
    """Build the distribution of the folder `source`; `kind` is "wheel" or "sdist"."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder.resolve())]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)

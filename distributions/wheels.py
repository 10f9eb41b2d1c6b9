"""`make wheels`: a wheel for each machine and one for all other systems, into dist/."""

from __future__ import annotations

import subprocess
import sys

from .building import ROOT, build_wheels

DIST = ROOT / "dist"


def main() -> int:
    """Replace the wheels that an earlier call left."""
    DIST.mkdir(exist_ok=True)
    for file in DIST.glob("repl_env-*.whl"):
        file.unlink()
    try:
        build_wheels(DIST)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    for file in sorted(DIST.glob("repl_env-*.whl")):
        print(f"dist/{file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

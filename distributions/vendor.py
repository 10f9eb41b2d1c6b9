"""Files of pages that come from npm packages: written anew, or compared with the packages.

`python -m distributions.vendor` compares, `--write` writes. `vendor.toml` names package, version
and path of each file, and its SHA-256. Needs `npm`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from repl_env.display.pages import WEB

FOLDER = WEB / "vendor"


def main(arguments: list[str]) -> str | None:
    """Return an error for `sys.exit`, or None."""
    rows = tomllib.loads((FOLDER / "vendor.toml").read_text(encoding="utf-8"))["file"]
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows:
            content = packaged(row, Path(scratch))
            if hashlib.sha256(content).hexdigest() != row["sha256"]:
                return f"{row['name']}: {row['package']} {row['version']} has another sum"
            if arguments == ["--write"]:
                (FOLDER / row["name"]).write_bytes(content)
            elif (FOLDER / row["name"]).read_bytes() != content:
                return f"{row['name']} differs from {row['package']} {row['version']}"
    print(f"{len(rows)} files as in their packages")
    return None


def packaged(row: dict[str, Any], scratch: Path) -> bytes:
    """Return the file of a row, from the archive of its package in the registry."""
    command = ["npm", "pack", "--silent", f"{row['package']}@{row['version']}"]
    done = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True)
    with tarfile.open(scratch / done.stdout.strip()) as archive:
        member = archive.extractfile(f"package/{row['path']}")
        assert member is not None, row
        return member.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An image with Python for where none can be pulled: Debian's packages, and nothing else.

`debootstrap` (of the package of that name, by root) fetches them from where apt here gets its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

# `python` is what images of Python call it; a virtual environment needs the last.
_PACKAGES = "python3,python-is-python3,python3-venv"
_SECONDS = 600.0
# Left out: half of the size, which images of Python do not have either.
_LEFT_OUT = [
    f"--exclude=./{place}/*"
    for place in (
        *("usr/share/doc", "usr/share/locale", "usr/share/man"),
        *("var/cache/apt", "var/lib/apt/lists"),
    )
]


class NoImageError(Exception):
    """The reason why there is no image."""


def of_packages(client: list[str], name: str, folder: Path) -> None:
    """Give the engine that `client` talks to an image `name`; `folder` is to write in.

    Raises:
        NoImageError: saying what is missing.
    """
    tool = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if tool is None or os.geteuid() != 0:
        raise NoImageError("to make one takes root and debootstrap (Debian: debootstrap)")
    root = folder / "root"
    try:
        source, release = _source()
        packages = f"--include={_PACKAGES}"
        _run(tool, "--variant=minbase", packages, release, str(root), source)
        archive = subprocess.Popen(
            ["tar", "--create", f"--directory={root}", "--numeric-owner", *_LEFT_OUT, "."],
            stdout=subprocess.PIPE,
        )
        with archive:
            _run(*client, "import", "-", name, stdin=archive.stdout)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _source() -> tuple[str, str]:
    """Return the URI from which apt gets Debian, and the release."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    told = _run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    for uri, release, component in map(str.split, told.splitlines()):
        # Not the update suites alone, as the name of a release would suggest.
        if component == "main" and "-" not in release:
            return uri, release
    raise NoImageError("apt has no index of Debian's packages: run apt-get update")


def _run(*command: str, stdin: IO[bytes] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoImageError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise NoImageError(f"{command[0]}: {' '.join(last)}")
    return str(done.stdout)

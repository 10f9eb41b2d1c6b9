"""Users who run the cases: this user, and if this user is root, an ordinary one besides.

The ordinary user has a copy of the engine and of these modules, since a checkout may lie where only
its owner can read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import repl_sandbox

from .interpreters import open_to_all, with_packages

# No account has this uid on common systems; the uid of nobody (65534) may own files.
ORDINARY_UID = 64321
_HERE = Path(__file__).parent
_PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
# The tiers whose sessions run under an interpreter with packages.
_FULL = ("jailed", "confined", "process", "policy")
_RECENT = "import sys, repl_sandbox\nprint(sys.version_info >= (3, 11))"


@dataclass(frozen=True)
class Identity:
    """A user, and how a program of these modules is started as that user."""

    name: str
    uid: int
    python: str
    library: Path
    options: dict[str, Any] = field(default_factory=dict)
    # The interpreter of the sessions, by tier, where it is not that of the supervisor.
    pythons: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m abuse.member` with pipes for its standard input and output."""
        environment = {**os.environ, "PYTHONPATH": str(self.library)}
        return subprocess.Popen(
            [self.python, "-m", f"{_HERE.name}.member", *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **self.options,
        )


@contextlib.contextmanager
def myself() -> Iterator[Identity]:
    """This user, with the modules where they lie."""
    name = "root" if os.geteuid() == 0 else "user"
    with _folder() as folder:
        python = open_to_all()
        if python != sys.executable:
            python = with_packages(["cloudpickle"], folder, {}) or python
        pythons = {} if python is None else {"confined": (python,), "process": (python,)}
        yield Identity(name, os.geteuid(), sys.executable, _HERE.parent, pythons=pythons)


@contextlib.contextmanager
def ordinary() -> Iterator[Identity | str]:
    """An ordinary user, for as long as its copies are there; or why there is none."""
    if os.geteuid() != 0:
        yield "only root can be another user"
        return
    with _folder() as library:
        ignore = shutil.ignore_patterns("__pycache__")
        for source in (Path(str(repl_sandbox.__file__)).parent, _HERE):
            shutil.copytree(source, library / source.name, ignore=ignore)
        yield _found(library)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder that all may read. Not under /tmp: mounts below it would have to appear in each
    session's own /tmp.
    """
    with tempfile.TemporaryDirectory(prefix="repl-user-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def _found(library: Path) -> Identity | str:
    options: dict[str, Any] = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
    for python in _PYTHONS:
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [python, "-c", _RECENT],
                env={"PYTHONPATH": str(library)},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
                **options,
            )
            if done.stdout.strip() == "True":
                # The user cannot write there: otherwise each process would compile the modules that
                # it imports.
                compiling = [python, "-I", "-m", "compileall", "-q", str(library)]
                subprocess.run(compiling, cwd="/", check=True)
                # Language policies need the one, checkpoints the other.
                packages = ["RestrictedPython", "cloudpickle"]
                full = with_packages(packages, library / "environments", options)
                pythons = {} if full is None else dict.fromkeys(_FULL, (full,))
                return Identity("user", ORDINARY_UID, python, library, options, pythons)
    return "no Python of at least 3.11 that another user may run"

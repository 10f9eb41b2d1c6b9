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

from .interpreters import open_to_all, with_policies

# No account has this uid on common systems; the uid of nobody (65534) may own files.
ORDINARY_UID = 64321
_HERE = Path(__file__).parent
_PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
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


def myself() -> Identity:
    """This user, with the modules where they lie."""
    name = "root" if os.geteuid() == 0 else "user"
    python = open_to_all()
    pythons = {} if python is None else {"confined": (python,), "process": (python,)}
    return Identity(name, os.geteuid(), sys.executable, _HERE.parent, pythons=pythons)


@contextlib.contextmanager
def ordinary() -> Iterator[Identity | str]:
    """An ordinary user, for as long as its copies are there; or why there is none."""
    if os.geteuid() != 0:
        yield "only root can be another user"
        return
    # Not under /tmp: mounts below it would have to appear in each session's own /tmp.
    with tempfile.TemporaryDirectory(prefix="repl-user-", dir="/var/tmp") as folder:
        library = Path(folder)
        library.chmod(0o755)
        ignore = shutil.ignore_patterns("__pycache__")
        for source in (Path(str(repl_sandbox.__file__)).parent, _HERE):
            shutil.copytree(source, library / source.name, ignore=ignore)
        yield _found(library)


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
                policy = with_policies(library / "environments", options)
                pythons = {} if policy is None else {"policy": (policy,)}
                return Identity("user", ORDINARY_UID, python, library, options, pythons)
    return "no Python of at least 3.11 that another user may run"

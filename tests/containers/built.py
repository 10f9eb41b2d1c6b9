"""The images of docker/, built by an engine of tests as `make images` does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parents[2]
SERVER, SESSION = "docker/Dockerfile", "docker/Dockerfile.session"
# Paths that the engine itself writes into each container.
_NOT_OF_THE_IMAGE = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


@dataclass(frozen=True, slots=True)
class Engine:
    """A client of the engine, and a folder with all that a build may read."""

    client: tuple[str, ...]
    base: str
    context: Path

    def __call__(
        self, *command: str, stdin: IO[bytes] | None = None, status: int = 0, **variables: str
    ) -> str:
        """Return a command's standard output and errors; the command must end with `status`."""
        done = subprocess.run(
            [*self.client, *command],
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
            env={**os.environ, **variables},
        )
        assert done.returncode == status, f"{command}: {done.stdout[-4000:]}"
        return done.stdout

    def build(self, name: str, file: str, *options: str, base: str = "", kit: bool = False) -> str:
        """Build an image without network, by the classic builder unless `kit`; its name."""
        given = (f"--build-arg=BASE={base or self.base}", f"--file={self.context / file}")
        command = ("build", "--network=none", *given, f"--tag={name}", *options, str(self.context))
        self(*command, DOCKER_BUILDKIT=str(int(kit)))
        return name

    def has_kit(self) -> bool:
        """Whether this client can build by BuildKit: newer ones need a plugin for it."""
        command = [*self.client, "build", "--help"]
        env = {**os.environ, "DOCKER_BUILDKIT": "1"}
        return subprocess.run(command, capture_output=True, check=False, env=env).returncode == 0

    def program(self, image: str, file: Path, *arguments: str) -> str:
        """Run a program with the image's Python, without network, and return its output."""
        command = ("run", "--rm", "--interactive", "--network=none", "--entrypoint=python3")
        with file.open("rb") as program:
            return self(*command, image, "-", *arguments, stdin=program)

    def files(self, image: str) -> set[str]:
        """The path of each file of an image."""
        skipped = " ".join(f"-path {place} -prune -o" for place in _NOT_OF_THE_IMAGE)
        find = ("--entrypoint=find", image, "/", "-xdev", *skipped.split(), "-print")
        return set(self("run", "--rm", "--network=none", "--user=0", *find).splitlines())


@cache
def engine(client: tuple[str, ...], base: str, folder: Path) -> Engine:
    """The engine, with the wheels for the Python of `base` beside the files of docker/."""
    context = folder / "checkout"
    shutil.copytree(ROOT / "docker", context / "docker", ignore=shutil.ignore_patterns("secrets"))
    shutil.copy(ROOT / ".dockerignore", context)
    made = Engine(client, base, context)
    about = made.program(base, ROOT / "distributions" / "about.py").split()
    folder = context / "dist" / "wheelhouse"
    command = [sys.executable, "-m", "distributions.wheelhouse", str(folder), *about]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no wheels for {base}: {done.stderr.strip()[-500:]}")
    return made


@cache
def server_image(made: Engine) -> str:
    """The image of the server."""
    return made.build("repl-env-of-tests", SERVER)

"""Images of nginx and Prometheus for where none can be pulled: Debian's packages.

The packages are fetched by apt of this machine, whose Debian must be that of the image.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.containers.built import Engine

# The programs need only the standard library.
_PACKAGES = ("nginx", "nginx-common", "prometheus")
_ENTRIES = {
    "nginx-of-tests": 'CMD ["nginx", "-g", "daemon off;"]',
    "prometheus-of-tests": 'ENTRYPOINT ["prometheus"]',
}


def images(engine: Engine, folder: Path) -> tuple[str, ...]:
    """Build both; their names, nginx first."""
    packages, root = folder / "packages", folder / "root"
    packages.mkdir()
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("nginx and Prometheus come from Debian's packages, and apt is not here")
    fetched = subprocess.run(
        ["apt-get", "download", *_PACKAGES],
        cwd=packages,
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode != 0:
        pytest.skip(f"no packages of nginx and Prometheus: {fetched.stderr.strip()}")
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "--extract", package, root], check=True)
    shutil.rmtree(root / "lib", ignore_errors=True)  # units of systemd, and a link in the image
    for name, entry in _ENTRIES.items():
        (folder / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nCOPY root /\n{entry}\n")
        given = (f"--build-arg=BASE={engine.base}", f"--tag={name}", str(folder))
        engine("build", "--network=none", *given, DOCKER_BUILDKIT="0")
    return tuple(_ENTRIES)

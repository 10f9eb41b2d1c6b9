"""The wheel in containers of ordinary engines. `make test-containers` asks for it; it needs an
engine, an image with Python (REPL_TEST_IMAGE) and an index for pip. Without them nothing was
tested, and the skip says what was missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IMAGE = os.environ.get("REPL_TEST_IMAGE", "python:3.11-slim")
WANTED = "REPL_TEST_CONTAINERS" in os.environ

pytestmark = pytest.mark.skipif(not WANTED, reason="only `make test-containers` starts containers")

CONTAINERS = {
    "default profile": [],
    "no capabilities": ["--cap-drop=ALL", "--security-opt=no-new-privileges"],
}

INSIDE = """
set -e
python -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet /given/*.whl >&2
/tmp/venv/bin/repl-env doctor --json --require confined > /tmp/doctor.json
/tmp/venv/bin/python -m json.tool /tmp/doctor.json > /dev/null
/tmp/venv/bin/python /given/cases.py
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("engine")
    command = [sys.executable, str(HERE / "engine.py"), str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    try:
        client = json.loads(found.stdout)
        pulled = subprocess.run(
            [*client, "pull", IMAGE], capture_output=True, text=True, timeout=600, check=False
        )
        if pulled.returncode != 0:
            pytest.skip(f"no image {IMAGE}: {pulled.stderr.strip()}")
        yield client
    finally:
        subprocess.run([*command, "--stop"], check=True)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=HERE.parents[1], check=True, capture_output=True)
    shutil.copy(HERE / "cases.py", folder)
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", CONTAINERS)
def test_confined_holds_in_a_container(client: list[str], given: Path, name: str) -> None:
    options = ["--rm", "--user=1000:1000", "--env=HOME=/tmp", "--env=PIP_INDEX_URL"]
    mount = f"--volume={given}:/given:ro"
    done = subprocess.run(
        [*client, "run", *options, mount, *CONTAINERS[name], IMAGE, "sh", "-c", INSIDE],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "tier": "confined",
        "reads a file of the container": "refused",
        "reads a system file": "refused",
        "writes beside itself": "refused",
        "makes a socket": "refused",
        "signals the host's process": "refused",
        "reads the host's memory map": "refused",
        "works in its own place": "done",
        "takes too much memory": "Raised",
        "goes on": "42",
    }

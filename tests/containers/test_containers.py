"""The wheel in containers of ordinary engines. `make test-containers` asks for it; it needs an
engine, an image with Python (REPL_TEST_IMAGE, pulled, or made of Debian's packages), and an index
from which pip here gets wheels for it. Without them nothing was tested, and the skip says what was
missing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.containers.ready import IMAGE, run

HERE = Path(__file__).parent

CONTAINERS = {
    "default profile": ["--user=1000:1000"],
    "no capabilities": [
        *("--user=1000:1000", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
    ],
    "root of the container": ["--user=0:0"],
}

# The container has no network: what is installed was fetched by this side.
INSTALL = """
set -e
python -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet --no-index --find-links /given repl-env >&2
"""
DOCTOR_AND_CASES = """
/tmp/venv/bin/repl-env doctor >&2
/tmp/venv/bin/repl-env doctor --json --require confined > /tmp/doctor.json
/tmp/venv/bin/python -c 'import json; print(json.dumps(json.load(open("/tmp/doctor.json"))))'
/tmp/venv/bin/python /given/cases.py
"""
CORPUS = """
cd /given
PYTHONDONTWRITEBYTECODE=1 /tmp/venv/bin/python -m tests.security.abuse --tier confined --json
"""
ABOUT = 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())'


def wheels(folder: Path, version: str, machine: str) -> subprocess.CompletedProcess[str]:
    """Put the wheel of this tree, and those it needs under such a Python, into `folder`."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=HERE.parents[1], check=True, capture_output=True)
    (wheel,) = folder.glob("repl_env-*.whl")
    platforms = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
    return run(
        *(sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}"),
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
        *(f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")),
        *(f"--platform={platform}_{machine}" for platform in platforms),
        str(wheel),
    )


@pytest.fixture(scope="module")
def given(client: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    asked = run(*client, "run", "--rm", "--network=none", IMAGE, "python", "-c", ABOUT)
    assert asked.returncode == 0, asked.stderr
    fetched = wheels(folder, *asked.stdout.split())
    if fetched.returncode != 0:
        pytest.skip(f"no wheels for {IMAGE}: {fetched.stderr.strip()}")
    shutil.copy(HERE / "inside" / "cases.py", folder)
    shutil.copytree(
        HERE.parent / "security",
        folder / "tests" / "security",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the mask of who runs this
    return folder


@pytest.fixture
def inside(client: list[str], given: Path, name: str) -> Callable[[str], str]:
    """Return a function that runs a script in a new container, with the wheel installed."""

    def ran(script: str) -> str:
        options = ["--rm", "--network=none", "--env=HOME=/tmp", f"--volume={given}:/given:ro"]
        command = ["run", *options, *CONTAINERS[name], IMAGE, "sh", "-c", INSTALL + script]
        done = run(*client, *command)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        return done.stdout

    return ran


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_corpus_passes_in_a_container(inside: Callable[[str], str], name: str) -> None:
    report = json.loads(inside(CORPUS))
    assert report["changed"] == []
    for column in report["columns"]:
        counted = Counter(verdict["status"] for verdict in column["verdicts"])
        # Only root can run as another user.
        if name == "root of the container" or column["identity"] == "user":
            assert counted["passed"] > 350 and set(counted) == {"passed", "not applicable"}


@pytest.mark.parametrize("name", CONTAINERS)
def test_confined_is_chosen_and_works_in_a_container(inside: Callable[[str], str]) -> None:
    doctor, verdicts = map(json.loads, inside(DOCTOR_AND_CASES).splitlines()[-2:])
    assert doctor["tiers"] == {"jailed": False, "confined": True, "process": True}
    assert doctor["session"]["tier"] == "confined"
    signals = verdicts.pop("signals are held")
    assert verdicts == {
        "tier": "confined",
        "not had": ["jailed"],
        "reads a file of the container": "refused",
        "reads a system file": "refused",
        "writes beside itself": "refused",
        "makes a socket": "refused",
        "signals the host's process": "refused" if signals else "done",
        "reads the host's memory map": "refused",
        "works in its own place": "done",
        "takes too much memory": "Raised",
        "goes on": "42",
    }

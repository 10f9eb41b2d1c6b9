"""requirements.lock: versions and hashes of everything that a server and its models need."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("openai", "hf", "server", "mcp")  # `server` names `mcp`
PIP = ("-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(LOCK))


def pinned() -> dict[str, str]:
    """Versions by normalised names."""
    rows = re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in rows}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = [*project["dependencies"]]
    for extra in EXTRAS:
        rows += project["optional-dependencies"][extra]
    return [each for each in map(Requirement, rows) if each.name != "repl-env"]


@pytest.mark.parametrize("requirement", declared(), ids=lambda each: each.name)
def test_the_lock_admits_what_the_project_asks_for(requirement: Requirement) -> None:
    version = pinned()[re.sub(r"[-_.]+", "-", requirement.name).lower()]

    assert requirement.specifier.contains(version), "run `make lock`"


def test_every_pinned_version_has_a_hash_and_no_address() -> None:
    entries = re.split(r"^(?=[\w.-]+==)", LOCK.read_text(), flags=re.MULTILINE)[1:]

    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in LOCK.read_text()


def test_the_server_installs_from_the_lock_and_the_wheel(wheel_file: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    subprocess.run([python, *PIP], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel_file], check=True)

    subprocess.run([python, "-m", "pip", "check"], check=True)
    imports = "import repl_server.asgi, repl_env.rlm.openai_model, repl_env.rlm.hf_model"
    subprocess.run([python, "-c", imports], check=True, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_has_a_wheel_for_every_interpreter(version: str, tmp_path: Path) -> None:
    other = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--python-version")
    command = [sys.executable, *PIP, *other, version, "--target", str(tmp_path)]
    subprocess.run(command, check=True)

"""The locks: versions and hashes of what a server and its models need, and of the session image."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from distributions.locks import constraints, entries, needed

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
SPACE_LOCK = ROOT / "repl_env" / "integrations" / "space_files" / "requirements.lock"
SESSION_LOCK = ROOT / "docker" / "session.lock"
SPACE_SESSION_LOCK = SPACE_LOCK.with_name("session.lock")
LOCKS = [LOCK, SESSION_LOCK, SPACE_LOCK, SPACE_SESSION_LOCK]
EXTRAS = ("openai", "hf", "server", "mcp")  # `server` names `mcp`
PIP = ("-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(LOCK))


def pinned(lock: Path = LOCK) -> dict[str, str]:
    """Versions by normalised names."""
    rows = re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE)
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


@pytest.mark.parametrize("lock", LOCKS, ids=lambda each: f"{each.parent.name}/{each.name}")
def test_every_pinned_version_has_a_hash_and_no_address(lock: Path) -> None:
    pins = re.split(r"^(?=[\w.-]+==)", lock.read_text(), flags=re.MULTILINE)[1:]

    assert all("--hash=sha256:" in pin for pin in pins)
    assert "://" not in lock.read_text()


def test_the_session_lock_pins_what_its_image_names_at_the_versions_of_the_server() -> None:
    named = re.findall(r"^[\w.-]+", (ROOT / "docker" / "session.in").read_text(), re.MULTILINE)
    server, session = pinned(), pinned(SESSION_LOCK)

    assert {name.lower() for name in named} <= session.keys()
    assert {name: server[name] for name in server.keys() & session.keys()} == {
        name: session[name] for name in server.keys() & session.keys()
    }, "run `make lock`"


def test_the_lock_of_a_space_is_the_part_of_the_lock_that_a_server_needs() -> None:
    whole, part = dict(entries(LOCK.read_text())), dict(entries(SPACE_LOCK.read_text()))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    models = {"openai", "huggingface-hub"}
    direct = {re.sub(r"[-_.]+", "-", each.name).lower() for each in declared()} - models
    pins = {requirement.name: requirement for requirement in part}

    assert extras["optional-dependencies"]["server"][0] == "repl-env[mcp]"
    assert all(whole[requirement] == hashes for requirement, hashes in part.items()), "`make lock`"
    assert direct <= pins.keys() and not models & pins.keys()
    for name in pins:
        for needs in _needs(name):
            assert needs in pins, f"{name} needs {needs}: run `make lock`"


def test_the_packages_of_a_space_are_those_of_the_session_image() -> None:
    image, space = (dict(entries(lock.read_text())) for lock in (SESSION_LOCK, SPACE_SESSION_LOCK))
    names = {requirement.name for requirement in space}

    assert {"numpy", "pandas", "matplotlib"} <= names
    assert all(image[requirement] == hashes for requirement, hashes in space.items()), "`make lock`"
    server = pinned(SPACE_LOCK)
    pins = pinned(SPACE_SESSION_LOCK)
    assert {name: server[name] for name in server.keys() & pins.keys()} == {
        name: pins[name] for name in server.keys() & pins.keys()
    }
    for name in names:
        for needs in _needs(name):
            assert needs in names, f"{name} needs {needs}: run `make lock`"


def _needs(name: str) -> set[str]:
    """What an installed distribution needs here, without extras."""
    found = set()
    try:
        rows = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # for another system
        return found
    for requirement in map(Requirement, rows):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.add(re.sub(r"[-_.]+", "-", requirement.name).lower())
    return found


def test_constraints_are_the_versions_of_the_lock(tmp_path: Path) -> None:
    rows = [row for row in constraints(LOCK.read_text()).splitlines() if not row.startswith("#")]

    assert [Requirement(row) for row in rows] == [each for each, _ in entries(LOCK.read_text())]
    assert len(rows) == len(pinned()) and not any("--hash" in row for row in rows)


LOCK_OF_MANY = """\
# by a tool
bare==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via other
older==1.0 ; python_full_version < '3.11.5' \\
    --hash=sha256:cc
newer==2.0 ; python_full_version >= '3.11.5' \\
    --hash=sha256:dd
minor==2.0 ; python_version >= '3.13' \\
    --hash=sha256:ee
windows==1 ; sys_platform == 'win32' \\
    --hash=sha256:ff
arm==1 ; platform_machine == 'aarch64' and implementation_name == 'cpython' \\
    --hash=sha256:00
"""


@pytest.mark.parametrize(
    ("version", "machine", "names"),
    [
        ("3.11.2", "x86_64", "bare older"),
        ("3.11.5", "x86_64", "bare newer"),
        ("3.13.0", "x86_64", "bare newer minor"),
        ("3.14.1", "aarch64", "bare newer minor arm"),
    ],
)
def test_a_wheelhouse_is_for_the_python_of_its_image(version, machine, names) -> None:
    rows = list(needed(LOCK_OF_MANY, version, machine))

    assert [row.partition("==")[0] for row in rows] == names.split()
    assert rows[0] == "bare==1.0 --hash=sha256:aa --hash=sha256:bb\n"


@pytest.mark.slow  # a minute or two, of the network
def test_the_server_installs_from_the_lock_and_the_wheel(wheel_file: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    subprocess.run([python, *PIP], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel_file], check=True)

    subprocess.run([python, "-m", "pip", "check"], check=True)
    models = "repl_env.llm"
    imports = f"import repl_server.asgi, {models}.openai, {models}.hf"
    subprocess.run([python, "-c", imports], check=True, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_has_a_wheel_for_every_interpreter(version: str, tmp_path: Path) -> None:
    other = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--python-version")
    command = [sys.executable, *PIP, *other, version, "--target", str(tmp_path)]
    subprocess.run(command, check=True)

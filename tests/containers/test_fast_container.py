"""Tier "container" on a real daemon within seconds: for every run of the tests, where one starts.

The image is empty, and this system's /usr is mounted into it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_sandbox import IsolationError, Limits, Sandbox, SandboxClosed, SandboxError
from tests.containers.ready import ENGINE, run
from tests.containers.small_image import HERE, loaded

pytest.importorskip("docker.client")

EMPTY = "repl-env-test/empty"
PYTHON = "/usr/bin/python3"
RECENT = "import sys; sys.exit(sys.version_info < (3, 11))"
MOUNTS = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    if shutil.which("docker") is None or not all(map(os.path.isdir, MOUNTS.values())):
        pytest.skip("no docker client, or no /usr that holds all libraries")
    if not os.path.exists(PYTHON) or run(PYTHON, "-c", RECENT).returncode != 0:
        pytest.skip(f"{PYTHON} is not CPython 3.11 or later")
    folder = tmp_path_factory.mktemp("engine")
    try:
        started = run(*ENGINE, str(folder), "--own")
        if started.returncode != 0:
            pytest.skip(started.stderr.strip())
        address = f"unix://{folder}/engine.sock"
        client = ["docker", "--host", address]
        loaded(client, EMPTY, HERE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", address)
            yield client
    finally:
        run(*ENGINE, str(folder), "--stop")


def sandbox() -> Sandbox:
    return Sandbox(
        isolation="container",
        image=EMPTY,
        python=PYTHON,
        mounts=MOUNTS,
        limits=Limits(timeout=60),
    )


def containers(client: list[str]) -> list[str]:
    return run(*client, "ps", "--all", "--quiet").stdout.split()


def test_sessions_in_a_container_that_is_looked_at_and_removed(client: list[str]) -> None:
    with sandbox() as made:
        with made.session() as session, made.session() as other:
            found = session.isolation
            assert session.run("x = 6 * 7; x").value == "42"
            assert other.run("x").error.type == "NameError"
            assert session.run("import os; os.listdir('/run')").error.type == "PermissionError"
        with made.with_shared(text="shared") as child, child.session() as session:
            assert session.run("text").value == "'shared'"
        assert len(containers(client)) == 1
    assert found.tier == "container"
    assert containers(client) == []


def test_a_wall_that_is_left_out_is_missed(
    client: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from docker.models.containers import ContainerCollection

    create = ContainerCollection.create

    def looser(self: object, *args: object, **given: object) -> object:
        return create(self, *args, **{**given, "read_only": False, "network_mode": "host"})

    monkeypatch.setattr(ContainerCollection, "create", looser)
    with pytest.raises(IsolationError, match=r"read-only root.*no network"):
        sandbox()
    assert containers(client) == []


def test_what_somebody_removes_is_gone_and_what_is_left_is_removed(client: list[str]) -> None:
    with sandbox() as made, made.session() as session:
        assert run(*client, "rm", "--force", *containers(client)).returncode == 0
        with pytest.raises(SandboxError):
            session.run("1")
        with pytest.raises(SandboxClosed):
            made.session()
    # As a host leaves it that is killed before its container starts.
    with Path("/proc/sys/kernel/random/boot_id").open(encoding="ascii") as file:
        owner = f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')} {os.getpid()} 1"
    created = run(*client, "create", f"--label=repl-env.owner={owner}", EMPTY, "true")
    assert created.returncode == 0, created.stderr
    cleaned = CliRunner().invoke(build(), ["doctor", "--clean"])
    assert (cleaned.exit_code, cleaned.output[:17]) == (0, "removed container")
    assert containers(client) == []

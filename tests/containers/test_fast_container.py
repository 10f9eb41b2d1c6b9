"""Tier "container" on a real daemon within seconds: for every run of the tests, where one starts.

The image is empty, and this system's /usr is mounted into it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_sandbox import (
    IsolationError,
    Limits,
    Sandbox,
    SandboxClosed,
    SandboxError,
    Session,
    TimedOut,
)
from tests.containers.engine import GVISOR, STREAMED
from tests.containers.ready import ENGINE, only_if_there, run
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


def sandbox(**arguments: Any) -> Sandbox:
    return Sandbox(
        isolation="container",
        image=EMPTY,
        python=PYTHON,
        mounts=MOUNTS,
        limits=Limits(timeout=60),
        **arguments,
    )


def containers(client: list[str]) -> list[str]:
    return run(*client, "ps", "--all", "--quiet").stdout.split()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"runtime": STREAMED, "per_session": False}],
    ids=["by a socket", "over a stream"],
)
def test_sessions_in_a_container_that_is_inspected_and_removed(
    client: list[str], arguments: dict[str, Any]
) -> None:
    only_if_there(client, arguments.get("runtime"))
    with sandbox(**arguments) as made:
        with made.session() as session, made.session() as other:
            found = session.isolation
            assert session.run("x = 6 * 7; x").value == "42"
            assert other.run("x").error.type == "NameError"
            assert session.run("import os; os.listdir('/sys')").error.type == "PermissionError"
            carries_everything(session)
        with made.with_shared(text="shared") as child, child.session() as session:
            assert session.run("text").value == "'shared'"
        assert len(containers(client)) == 1
    assert found.tier == "container"
    assert containers(client) == []


def carries_everything(session: Session) -> None:
    """Check texts, output, files, checkpoints and branches, by descriptors if available."""
    heard: list[str] = []

    def hear(_: str, text: str) -> None:
        heard.append(text)

    session.set("text", "é" * 700_000)
    printed = session.run(
        "print(text[:200_000]); len(text)", on_output=lambda _, text: heard.append(text)
    )
    assert (printed.value, "".join(heard)) == ("700000", printed.stdout)
    session.files.put_all({"a.bin": bytes(300_000), "b/c.txt": b"c"})
    assert session.files.get("a.bin") == bytes(300_000)
    assert [file.path for file in session.files.list()] == ["a.bin", "b", "b/c.txt"]
    died = session.run("import os; os._exit(1)")
    assert (died.reason, died.state, session.run("x").value) == ("exit", "rolled_back", "42")
    with session.branch() as branch:
        assert branch.run("x + len(text)").value == "700042"
    assert isinstance(session.run("while True: pass", timeout=0.3), TimedOut)
    assert session.run("x").value == "42"


@pytest.mark.parametrize("runtime", [None, STREAMED])
def test_a_missing_isolation_layer_is_detected(
    client: list[str], monkeypatch: pytest.MonkeyPatch, runtime: str | None
) -> None:
    from docker.api.client import APIClient

    only_if_there(client, runtime)
    create = APIClient.create_host_config

    def looser(self: object, **given: object) -> object:
        return create(self, **{**given, "read_only": False, "network_mode": "host"})

    monkeypatch.setattr(APIClient, "create_host_config", looser)
    with pytest.raises(IsolationError, match=r"read-only root.*no network"):
        sandbox(runtime=runtime)
    assert containers(client) == []


def test_containers_removed_from_outside_are_lost_and_the_rest_is_removed(
    client: list[str],
) -> None:
    with sandbox() as made, made.session() as session:
        assert run(*client, "rm", "--force", *containers(client)).returncode == 0
        with pytest.raises(SandboxError):
            session.run("1")
        with pytest.raises(SandboxClosed):
            made.session()
    # A host that is killed before its container starts leaves this state.
    with Path("/proc/sys/kernel/random/boot_id").open(encoding="ascii") as file:
        owner = f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')} {os.getpid()} 1"
    created = run(*client, "create", f"--label=repl-env.owner={owner}", EMPTY, "true")
    assert created.returncode == 0, created.stderr
    cleaned = CliRunner().invoke(build(), ["doctor", "--clean"])
    assert (cleaned.exit_code, cleaned.output[:17]) == (0, "removed container")
    assert containers(client) == []


def test_a_container_for_each_session(client: list[str]) -> None:
    with sandbox(per_session=True, ready=1) as made:
        with made.session() as one, made.session() as other:
            layers = {layer.name for layer in one.isolation.layers if layer.active}
            assert {"container", "own container"} <= layers
            assert one.run("import os; os.uname().nodename").ok
            assert 2 <= len(containers(client)) <= 3
            carries(one, other)
        with made.with_shared(text="shared") as child, child.session() as session:
            assert session.run("text").value == "'shared'"
            with session.branch() as branch:
                assert branch.run("text").value == "'shared'"
    assert containers(client) == []


def carries(one: Session, other: Session) -> None:
    one.run("x = 42")
    assert (one.run("x").value, other.run("x").error.type) == ("42", "NameError")
    assert run_and_end(one) == "rolled_back"


def run_and_end(session: Session) -> str:
    return session.run("import os; os._exit(1)").state


def test_sessions_that_are_jailed_in_their_container(client: list[str]) -> None:
    with sandbox(inside="jailed") as made, made.session() as session, made.session() as other:
        found = session.isolation
        layers = {layer.name: layer.active for layer in found.layers}
        assert found.tier == "jailed"
        assert layers["container"] and layers["pid namespace"] and layers["net namespace"]
        assert session.run("import os; sorted(os.listdir('/proc'))[0]").value == "'1'"
        assert session.run("x = 6 * 7; x").value == "42"
        assert other.run("import os; os.listdir(os.getcwd())").value == "[]"
    assert containers(client) == []


def test_sessions_under_a_guest_kernel(client: list[str]) -> None:
    """The session's layers report the features that gVisor's kernel lacks."""
    only_if_there(client, GVISOR)
    with sandbox(runtime=GVISOR) as made:
        with made.session() as session:
            found = session.isolation
            session.set("text", "é" * 700_000)
            assert session.run("print('out'); len(text)").value == "700000"
            session.files.put("a.bin", bytes(300_000))
            assert session.files.get("a.bin") == bytes(300_000)
            assert isinstance(session.run("while True: pass", timeout=0.5), TimedOut)
            assert session.run("import os; os.uname().release").value != repr(os.uname().release)
            assert session.run("import os; os._exit(1)").reason == "exit"
            assert session.run("6 * 7").value == "42"
        with made.with_shared(text="shared") as child, child.session() as session:
            assert session.run("text").value == "'shared'"
    layers = {layer.name: layer for layer in found.layers}
    assert found.tier == "container"
    assert layers["container"].detail.endswith("a kernel of its own")
    assert layers["own container"].active
    assert not layers["landlock"].active
    assert containers(client) == []
    with pytest.raises(IsolationError, match="per_session=True"):
        sandbox(runtime=GVISOR, per_session=False)
    assert containers(client) == []

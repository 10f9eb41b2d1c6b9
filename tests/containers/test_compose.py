"""docker/compose.yaml: two servers behind nginx, and Prometheus, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repl_server.auth import new_key
from tests.containers import built, web
from tests.containers.built import ROOT, Engine
from tests.containers.ready import IMAGE, address_of
from tests.waiting import eventually

HERE = Path(__file__).parent
PROJECT = "repl-env-of-tests"
SERVERS = ("server-1", "server-2")
# The server of a tenant is pseudo-random: a few tenants may share one, but not all of these.
OWNERS = [f"owner-{number}" for number in range(24)]


def composer() -> list[str]:
    """The command of Compose: 1.29, which this file is held to, if it is here."""
    if (older := shutil.which("docker-compose")) is not None:
        return [older]
    plugin = ["docker", "compose", "version"]
    if subprocess.run(plugin, capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    pytest.skip("no Compose is installed (Debian: docker-compose)")


class Stack:
    """The services, and what asks them from within their network."""

    def __init__(self, engine: Engine, compose: Callable[..., str], keys: dict[str, str]) -> None:
        self.engine, self.compose, self.keys = engine, compose, keys

    def name(self, service: str) -> str:
        return self.compose("ps", "--quiet", service).split()[-1]

    def ask(self, program: Path, *arguments: str, owner: str = "prometheus") -> str:
        key = f"--env=REPL_API_KEY={self.keys[owner]}"
        command = ("exec", "--interactive", key, self.name("server-1"), "python", "-", *arguments)
        with program.open("rb") as source:
            return self.engine(*command, stdin=source)

    def holding(self, owner: str) -> set[str]:
        """The servers that have opened sessions of a tenant."""
        return {
            server
            for server in SERVERS
            if any(
                record["event"] == "session_opened" and record["tenant"] == f"key {owner}"
                for record in self.records(server)
            )
        }

    def records(self, server: str) -> list[dict[str, str]]:
        lines = self.engine("logs", self.name(server)).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def stack(client: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    command = composer()
    engine = built.engine(tuple(client), IMAGE, tmp_path_factory.getbasetemp())
    folder = tmp_path_factory.mktemp("compose")
    shutil.copytree(ROOT / "docker", folder / "docker")
    keys = secrets(folder / "docker" / "secrets")
    nginx, prometheus = web.images(engine, tmp_path_factory.mktemp("web"))
    env = {
        **os.environ,
        "REPL_ENV_IMAGE": built.server_image(engine),
        "NGINX_IMAGE": nginx,
        "PROMETHEUS_IMAGE": prometheus,
        "COMPOSE_PROJECT_NAME": PROJECT,
    }
    if (address := address_of(client)) is not None:
        env["DOCKER_HOST"] = address
    files = (folder / "docker" / "compose.yaml", HERE / "no_bridge.yaml")

    def compose(*arguments: str) -> str:
        given = [*command, *(f"--file={file}" for file in files), *arguments]
        done = subprocess.run(given, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    made = Stack(engine, compose, keys)
    try:
        compose("up", "--detach")
        for server in SERVERS:
            state = ("inspect", "--format={{.State.Health.Status}}", made.name(server))
            eventually(
                lambda state=state: engine(*state).strip() == "healthy",
                lambda server=server: engine("logs", made.name(server)),
            )
        yield made
    finally:
        compose("down", "--volumes", "--timeout=60")


def secrets(folder: Path) -> dict[str, str]:
    """Write the files that docs/containers.md asks an operator for; the keys by the names of their
    tenants.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    made = {name: new_key(name) for name in ("prometheus", *OWNERS)}
    (folder / "keys.txt").write_text("".join(f"{line}\n" for _, line in made.values()))
    (folder / "prometheus.key").write_text(made["prometheus"][0])
    for file in folder.iterdir():
        file.chmod(0o644)
    return {name: key for name, (key, _) in made.items()}


def test_each_tenant_has_one_server_and_the_example_passes_on_both(stack: Stack) -> None:
    used: dict[str, str] = {}
    for owner in OWNERS:
        stack.ask(HERE / "inside" / "owner.py", owner=owner)
        (server,) = stack.holding(owner)
        used.setdefault(server, owner)
        if len(used) == len(SERVERS):
            break
    assert used.keys() == set(SERVERS)

    for server, owner in used.items():
        address = ("http://127.0.0.1:8000", "20")
        said = stack.ask(ROOT / "examples" / "remote.py", *address, owner=owner)
        assert "150000 lines" in said and "reward 1.0" in said
        assert stack.holding(owner) == {server}


def test_prometheus_reads_both_servers(stack: Stack) -> None:
    def found() -> str:
        return stack.ask(HERE / "inside" / "targets.py").strip()

    eventually(lambda: found() == "127.0.0.1:8001 up, 127.0.0.1:8002 up", found)


def test_only_the_proxy_and_prometheus_are_published(stack: Stack) -> None:
    config = stack.compose("config")

    assert "127.0.0.1:8000:8000" in config or "host_ip: 127.0.0.1" in config
    for server in SERVERS:
        (seen,) = json.loads(stack.engine("inspect", stack.name(server)))
        assert not seen["HostConfig"]["PortBindings"]
        assert seen["HostConfig"]["ReadonlyRootfs"] and seen["HostConfig"]["CapDrop"] == ["ALL"]


def test_compose_down_lets_the_servers_drain(stack: Stack) -> None:
    stack.compose("stop", "--timeout=60", "server-2")

    assert stack.records("server-2")[-1]["event"] == "server_stopped"
    stack.compose("start", "server-2")

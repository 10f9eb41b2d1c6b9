"""Daemons and images that cannot be used, and daemons that end: clear errors, nothing left."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_sandbox import IsolationError, Sandbox, SandboxClosed, SandboxError
from tests.containers.ready import ENGINE, IMAGE, run
from tests.containers.small_image import HERE, loaded

pytest.importorskip("docker.client")

EMPTY = "repl-env-test/empty"
FOREIGN = "repl-env-test/foreign"


def owned(client: list[str]) -> list[str]:
    found = run(*client, "ps", "--all", "--quiet", "--filter", "label=repl-env.owner")
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    ("name", "architecture", "told"),
    [
        (EMPTY, HERE, r"no such program.*python="),
        (FOREIGN, "s390x", "is for linux on s390x, and this machine is"),
    ],
)
def test_an_image_of_another_architecture(
    client: list[str], name: str, architecture: str, told: str
) -> None:
    loaded(client, name, architecture)
    with pytest.raises(SandboxError, match=told):
        Sandbox(isolation="container", image=name)
    assert owned(client) == []


@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_does_not_see_this_process_s_files(tmp_path: Path) -> None:
    program = "import sys, repl_sandbox as r; r.Sandbox(isolation='container', image=sys.argv[1])"
    mounted = 'mount -t tmpfs none "$1" && TMPDIR="$1" exec "$2" -c "$3" "$4"'
    script = ["sh", "-c", mounted, "sh", str(tmp_path), sys.executable, program, IMAGE]
    done = run("unshare", "--mount", *script)
    assert "does not see this process's files" in done.stderr


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that wants a login."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="a registry"')
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 (the name that the library calls)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.usefixtures("daemon")
def test_a_registry_that_wants_a_login() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever).start()
        name = f"127.0.0.1:{server.server_port}/private/python:3"
        try:
            with pytest.raises(SandboxError, match="login"):
                Sandbox(isolation="container", image=name)
        finally:
            server.shutdown()


@contextmanager
def standing_in(folder: Path, answer: bytes) -> Iterator[str]:
    """A daemon that answers every request so."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingUnixStreamServer(str(folder / "d.sock"), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"unix://{folder}/d.sock"
        finally:
            server.shutdown()


def reply(status: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (reply("200 OK", {"ApiVersion": "1.24", "MinAPIVersion": "1.12"}), "1.24 of the API"),
        (reply("200 OK", {"ApiVersion": "1.39"}), "1.39 of the API"),
        (reply("200 OK", {}), "d.sock"),
        (reply("200 OK", []), "d.sock"),
        (reply("500 Internal Server Error", {"message": "broken"}), "d.sock.*broken"),
        (b"HTTP/1.1 200 OK\r\n\r\nnot JSON", "d.sock"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "d.sock"),
        (b"", "d.sock"),
    ],
)
def test_an_address_that_is_no_daemon_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, told: str
) -> None:
    with standing_in(tmp_path, answer) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(IsolationError, match=told):
            Sandbox(isolation="container", image="python")


AS_ANOTHER_USER = """
import os, sys
from repl_sandbox import Sandbox, Limits
def ran():
    with Sandbox(isolation="container", image=sys.argv[1], limits=Limits(timeout=60)) as sandbox:
        with sandbox.session() as session:
            session.files.put("a", b"x")
            told = [session.run("import os; os.getuid()").value, session.isolation.tier]
            over = "for name in 'bc': open(name, 'wb').write(bytes(200 << 20))\\n"
            over += "import time; time.sleep(50)"
            return [*told, getattr(session.run(over), "reason", "none")]
ran()  # every module is loaded, which the other user might not read
os.setgroups([]); os.setresgid(64321, 64321, 64321); os.setresuid(64321, 64321, 64321)
try:
    print(*ran())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.usefixtures("daemon")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (0o666, "64321 container workspace"),
        (0o600, "IsolationError container: daemon: this user may not"),
    ],
)
def test_an_ordinary_user(client: list[str], mode: int, told: str) -> None:
    """A user who may use the daemon's socket gets sessions; another user gets the reason."""
    address = Path(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    closed = [each for each in address.parents if not each.stat().st_mode & 0o001]
    for folder in closed:
        folder.chmod(folder.stat().st_mode | 0o001)
    before = address.stat().st_mode
    address.chmod(mode)
    try:
        done = run(sys.executable, "-c", AS_ANOTHER_USER, IMAGE)
    finally:
        address.chmod(before)
    assert done.stdout.startswith(told), done.stdout + done.stderr
    assert owned(client) == []


@pytest.fixture(scope="module")
def own(client: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a small disk with an engine of its own, which a test may kill; and no image."""
    folder = tmp_path_factory.mktemp("own")
    mounted = run("mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder))
    if mounted.returncode != 0:
        pytest.skip(f"a small disk takes a mount: {mounted.stderr}")
    try:
        started = run(*ENGINE, str(folder), "--own", "--storage-driver=vfs")
        assert started.returncode == 0, started.stderr
        yield folder
    finally:
        run(*ENGINE, str(folder), "--stop")
        run("umount", "--lazy", str(folder))


def test_a_full_disk(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"unix://{own}/engine.sock"
    monkeypatch.setenv("DOCKER_HOST", address)
    client = ["docker", "--host", address]
    loaded(client, EMPTY, HERE)
    filled = run("dd", "if=/dev/zero", f"of={own}/full", "bs=64k")
    assert "No space left" in filled.stderr
    try:
        with pytest.raises(SandboxError, match="disk is full"):
            Sandbox(isolation="container", image=EMPTY)
    finally:
        (own / "full").unlink()
    assert owned(client) == []


def test_a_daemon_that_is_killed_leaves_nothing_after_its_restart(
    client: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--host" not in client:
        pytest.skip("the engine is not the tests' own")
    address = client[client.index("--host") + 1]
    folder = Path(address.removeprefix("unix://")).parent
    monkeypatch.setenv("DOCKER_HOST", address)
    with Sandbox(isolation="container", image=IMAGE) as sandbox, sandbox.session() as session:
        os.kill(int((folder / "engine.pid").read_text()), signal.SIGKILL)
        # The daemon is not involved, so nothing ends with it.
        assert session.run("6 * 7").value == "42"
        with sandbox.session() as other:
            assert other.run("6 * 7").value == "42"
        with pytest.raises(IsolationError, match="daemon"):
            Sandbox(isolation="container", image=IMAGE)
        # A daemon that starts ends the containers that it finds.
        restarted = run(*ENGINE, str(folder), "--own")
        assert restarted.returncode == 0, restarted.stderr
        with pytest.raises(SandboxClosed):
            sandbox.session()
        with pytest.raises(SandboxError):
            session.run("6 * 7")
    run(*client, "create", f"--label=repl-env.owner={gone()}", IMAGE, "true")
    cleaned = CliRunner().invoke(build(), ["doctor", "--clean"])
    assert cleaned.exit_code == 0
    assert cleaned.output.startswith("removed container")
    assert owned(client) == []


def gone() -> str:
    """The label of a container whose process is gone."""
    from repl_sandbox.host.docker import OWNER, labels_of_this_process

    system, pid, _ = labels_of_this_process()[OWNER].split()
    return f"{system} {pid} 1"

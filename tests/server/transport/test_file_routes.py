"""Files of a session over HTTP: ranges, limits, tenants and hostile names."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import pytest

from repl_sandbox import Limits
from repl_server import file_routes, guard
from repl_server.tenants import Tenant, TenantQuota
from tests.server.conftest import ask, peer, serving
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE, eventually

ME, OTHER = "127.0.0.1", "127.0.0.2"
MIB = 1 << 20
LIMITS = Limits(memory="512MiB", timeout=60.0, grace=60.0, workspace="32MiB", file_size="8MiB")
SETTINGS = {
    "limits": LIMITS,
    "recovery": "snapshot",
    "quota": TenantQuota(uploaded_bytes=10 * MIB),
}


@pytest.fixture(scope="module")
def server():
    with serving(SETTINGS) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_is_left(server, monkeypatch) -> Iterator[None]:
    for module in (guard, file_routes):
        monkeypatch.setattr(module, "LINGER_S", 60.0)
    yield
    eventually(lambda: server.manager.uploads.quota.used == 0)


class Held:
    """A session over a WebSocket, and requests for its files."""

    def __init__(self, server, socket) -> None:
        self.server, self.socket = server, socket
        self.token = socket.open()["token"]

    def request(
        self, method: str, target: str, body: Any = None, source: str = ME, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {"X-Session-Id": self.token}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        line = http.client.HTTPConnection(
            ME, self.server.port, timeout=PATIENCE, source_address=(source, 0)
        )
        try:
            line.request(method, target, body=body, headers=sent)
            answer = line.getresponse()
            names = {name.lower() for name, _ in answer.getheaders()}
            found = {name: answer.getheader(name, "") for name in names}  # repeated ones joined
            return answer.status, found, answer.read()
        finally:
            line.close()

    def refusal(self, method: str, target: str, *args: Any, **more: Any) -> tuple[int, str, Any]:
        status, _, body = self.request(method, target, *args, **more)
        told = json.loads(body)
        return status, told["code"], told.get("errno")

    def files(self, query: str = "") -> dict[str, Any]:
        status, _, body = self.request("GET", f"/files{query}")
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found


@contextmanager
def held_by(server, **options: Any) -> Iterator[Held]:
    with peer(server, named=True, **options) as socket:
        yield Held(server, socket)


@pytest.fixture
def held(server) -> Iterator[Held]:
    with held_by(server) as held:
        held.socket.reset(context="")
        yield held


def test_a_file_goes_up_and_comes_down_and_is_never_shown(held: Held) -> None:
    data = bytes(range(256)) * 20_000
    status, _, body = held.request("PUT", "/files/in/a.bin", data)
    assert status == 201
    assert json.loads(body) == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    held.socket.run("open('page.html', 'w').write('<script>alert(1)</script>')")
    status, headers, body = held.request("GET", "/files/in/a.bin")
    assert (status, body, headers["content-length"]) == (200, data, str(len(data)))
    for target in ("/files/page.html", "/archive"):
        status, headers, body = held.request("GET", target)
        assert status == 200
        assert headers["content-disposition"].startswith("attachment; ")
        assert headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in headers["content-security-policy"]
        assert headers["content-type"] in ("application/octet-stream", "application/x-tar")
        assert headers["cache-control"] == "no-store"
    entries = {each["path"]: each for each in held.files()["files"]}
    assert list(entries) == ["in", "in/a.bin", "page.html"]
    assert entries["in/a.bin"].items() >= {"size": len(data), "kind": "file"}.items()
    cut = held.files("?path=in&limit=1")
    assert [each["path"] for each in cut["files"]] == ["in/a.bin"]
    assert not held.files("?limit=1")["complete"]


RANGES = [
    ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
    ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
    ("bytes=-2", 206, b"89", "bytes 8-9/10"),
    ("bytes=-20", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=9-99999999", 206, b"9", "bytes 9-9/10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=99-100", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    ("bytes=5-4", 200, b"0123456789", None),
    ("bytes=-", 200, b"0123456789", None),
    ("bytes=0-1,4-5", 200, b"0123456789", None),
    ("bytes=" + "9" * 40 + "-", 200, b"0123456789", None),
    ("lines=0-1", 200, b"0123456789", None),
    ("bytes=a-b", 200, b"0123456789", None),
]


def test_a_range_is_sent_alone_or_refused(held: Held) -> None:
    held.request("PUT", "/files/ten", b"0123456789")
    for asked, status, body, content_range in RANGES:
        found, headers, told = held.request("GET", "/files/ten", Range=asked)
        assert (found, headers.get("content-range")) == (status, content_range), asked
        assert body is None or told == body, asked
    status, headers, body = held.request("HEAD", "/files/ten", Range="bytes=2-3")
    assert (status, headers["content-length"], body) == (206, "2", b"")
    tag = headers["etag"]
    assert held.request("GET", "/files/ten", Range="bytes=2-3", If_Range=tag)[2] == b"23"
    held.request("PUT", "/files/ten", b"abcdefghij")
    status, headers, body = held.request("GET", "/files/ten", Range="bytes=2-3", If_Range=tag)
    assert (status, body) == (200, b"abcdefghij")
    held.request("PUT", "/files/none", b"")
    assert held.request("GET", "/files/none")[::2] == (200, b"")
    assert held.request("GET", "/files/none", Range="bytes=0-")[0] == 416
    assert held.request("HEAD", "/archive")[::2] == (200, b"")


NAMES = [
    "a b.txt",
    "q?x#y&z=1%41",
    'quote"\\back',
    "nl\nname",
    "gr\u00fcn",
    ".hidden",
    "a;b=c",
    "\u202etxt",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_characters_survive_and_break_no_header(held: Held, name: str) -> None:
    target = f"/files/{quote(name, safe='')}"
    assert held.request("PUT", target, name.encode())[0] == 201
    assert [each["path"] for each in held.files()["files"]] == [name]
    status, headers, body = held.request("GET", target)
    assert (status, body) == (200, name.encode())
    saved = unquote(headers["content-disposition"].partition("filename*=UTF-8''")[2])
    assert saved == "".join(c if c.isprintable() else "_" for c in name)


def test_a_name_that_is_no_utf8_survives(held: Held) -> None:
    held.socket.run("open(b'\\xff\\n', 'w').write('odd'); import os; os.mkdir(b'd\\xfe')")
    held.socket.run("open(b'd\\xfe/f', 'w').close()")
    assert [each["path"] for each in held.files()["files"]] == ["d\udcfe", "d\udcfe/f", "\udcff\n"]
    assert held.request("GET", "/files/%FF%0A")[2] == b"odd"
    assert [each["path"] for each in held.files("?path=d%FE")["files"]] == ["d\udcfe/f"]
    _, _, body = held.request("GET", "/archive?path=d%FE")
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["d\udcfe/f"]


HOSTILE = """
import os
os.makedirs('dir/empty'); os.symlink('/etc', 'link'); os.symlink('/etc/passwd', 'passwd')
os.symlink('/proc/self/root', 'root'); open('file', 'w').close()
open('closed', 'w').write('x'); os.chmod('closed', 0)
try: os.mkfifo('fifo')
except OSError: open('fifo', 'w').close(); os.remove('fifo'); os.symlink('x', 'fifo')
"""
REFUSALS = [
    ("GET", "/files/missing", 404, "NO_FILE", "ENOENT"),
    ("GET", "/files/dir", 409, "FILE_ERROR", "EISDIR"),
    ("GET", "/files/dir/", 409, "FILE_ERROR", "EISDIR"),
    ("GET", "/files/passwd", 409, "FILE_ERROR", "ELOOP"),
    ("GET", "/files/link/passwd", 409, "FILE_ERROR", "ENOTDIR"),
    ("GET", "/files/root/etc/passwd", 409, "FILE_ERROR", "ENOTDIR"),
    ("GET", "/files/file/x", 409, "FILE_ERROR", "ENOTDIR"),
    ("GET", "/files/", 422, "VALIDATION_ERROR", None),
    ("GET", "/files/../etc/passwd", 422, "VALIDATION_ERROR", None),
    ("GET", "/files/a/%2e%2e/%2e%2e/x", 422, "VALIDATION_ERROR", None),
    ("GET", "/files/..%2f..%2fetc%2fpasswd", 422, "VALIDATION_ERROR", None),
    ("GET", "/files//etc/passwd", 422, "VALIDATION_ERROR", None),
    ("GET", "/files/%00", 422, "VALIDATION_ERROR", None),
    ("GET", f"/files/{'a' * 300}", 422, "VALIDATION_ERROR", None),
    ("GET", "/files?path=missing", 404, "NO_FILE", "ENOENT"),
    ("GET", "/files?path=file", 409, "FILE_ERROR", "ENOTDIR"),
    ("GET", "/files?path=../..", 422, "VALIDATION_ERROR", None),
    ("GET", "/files?limit=0", 422, "VALIDATION_ERROR", None),
    ("GET", "/files?limit=100001", 422, "VALIDATION_ERROR", None),
    ("GET", "/archive?path=file", 409, "FILE_ERROR", "ENOTDIR"),
    ("GET", "/archive?path=link", 409, "FILE_ERROR", "ENOTDIR"),
    ("PUT", "/files/dir", 409, "FILE_ERROR", "EISDIR"),
    ("PUT", "/files/link/x", 409, "FILE_ERROR", "ENOTDIR"),
    ("PUT", "/files/../x", 422, "VALIDATION_ERROR", None),
    ("DELETE", "/files/file", 405, "WRONG_METHOD", None),
    ("POST", "/files", 405, "WRONG_METHOD", None),
]  # fmt: skip


def test_nothing_but_regular_files_of_the_workspace_is_read_or_written(held: Held) -> None:
    held.socket.run(HOSTILE)
    before = held.files()
    for method, target, *told in REFUSALS:
        body = b"x" if method == "PUT" else None
        assert held.refusal(method, target, body) == tuple(told), (method, target)
    status, _, body = held.request("GET", "/files/fifo")
    assert status == 409
    assert json.loads(body)["message"].endswith(": 'fifo'")
    assert held.files() == before
    _, _, body = held.request("GET", "/archive")
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["dir", "dir/empty", "file"]


def test_uploads_keep_within_the_limits(held: Held) -> None:
    """`Limits.file_size` before any byte is read, the tenant's quota, and the workspace."""
    assert held.refusal("PUT", "/files/x", b"x" * (8 * MIB + 1)) == (413, "TOO_LARGE", None)
    chunked = iter([b"x" * MIB] * 9)
    assert held.refusal("PUT", "/files/x", chunked) == (413, "TOO_LARGE", None)
    held.socket.run("open('filler', 'wb').write(b'x' * (7 << 20))")
    for n in range(3):
        assert held.request("PUT", f"/files/{n}", b"x" * (8 * MIB))[0] == 201
    assert held.refusal("PUT", "/files/3", b"x" * (8 * MIB)) == (409, "FILE_ERROR", "ENOSPC")
    assert [each["path"] for each in held.files()["files"]] == ["0", "1", "2", "filler"]
    assert held.refusal("PUT", "/files/z", b"x", Content_Encoding="gzip")[0] == 422


def test_an_upload_counts_for_its_tenant_while_it_arrives(server, held: Held) -> None:
    line = http.client.HTTPConnection(ME, server.port, timeout=PATIENCE)
    line.putrequest("PUT", "/files/slow")
    line.putheader("X-Session-Id", held.token)
    line.putheader("Content-Length", str(8 * MIB))
    line.endheaders()
    line.send(b"x" * (6 * MIB))
    eventually(lambda: server.manager.uploads.quota.used == 6 * MIB)
    # The session is free meanwhile; another upload of the tenant is over its quota.
    assert held.socket.run("print(1)")["stdout"] == "1\n"
    assert held.refusal("PUT", "/files/x", b"x" * (5 * MIB)) == (429, "QUOTA_EXCEEDED", None)
    line.close()
    eventually(lambda: server.manager.uploads.quota.used == 0)
    assert held.files()["files"] == []


def test_only_its_tenant_reaches_a_session_and_only_by_the_header(server, held: Held) -> None:
    held.request("PUT", "/files/secret", b"x")
    for target in ("/files", "/files/secret", "/archive"):
        assert held.refusal("GET", target, source=OTHER)[1] == "UNKNOWN_SESSION"
        assert held.refusal("GET", target, X_Session_Id="0" * 32)[1] == "UNKNOWN_SESSION"
        assert held.refusal("GET", target, X_Session_Id="new")[1] == "UNKNOWN_SESSION"
        status, _, body = ask(server, "GET", f"{target}?session={held.token}")
        assert (status, body["code"]) == (422, "VALIDATION_ERROR")
        status, _, _ = ask(
            server, "GET", target, X_Session_Id=held.token, Origin="http://evil.example"
        )
        assert status == 403
    assert held.refusal("PUT", "/files/secret", b"y", source=OTHER)[1] == "UNKNOWN_SESSION"
    assert held.request("GET", "/files/secret")[2] == b"x"
    assert held.request("GET", "/files/secret")[1].get("access-control-allow-origin") is None


def test_a_session_without_an_episode_and_a_custom_environment_have_no_files(server) -> None:
    with held_by(server) as fresh:
        for target in ("/files", "/files/x", "/archive"):
            assert fresh.refusal("GET", target)[:2] == (409, "NOT_RESET")
        assert fresh.refusal("PUT", "/files/x", b"x")[:2] == (409, "NOT_RESET")
    with serving(environment=Adder, action=Add, observation=Sum) as custom, held_by(custom) as held:
        assert held.refusal("GET", "/files")[:2] == (400, "UNKNOWN_TYPE")
        assert held.refusal("PUT", "/files/x", b"x")[:2] == (400, "UNKNOWN_TYPE")


def test_requests_for_files_take_their_turn_behind_a_running_cell(held: Held) -> None:
    held.request("PUT", "/files/on", b"off")
    held.socket.send(
        "step", {"code": "print('go', flush=True)\nwhile True: pass"},
        id="t", stream=True,
    )  # fmt: skip
    held.socket.until("go\n")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(held.request("GET", "/files/on")))
    waiting.start()
    session = held.server.manager.find(Tenant("address", ME), held.token)
    eventually(lambda: session.queued == 1)
    assert answers == []
    held.socket.send("cancel", {"request": "t"}, id="c")
    held.socket.replies("t", "c")
    waiting.join()
    assert answers[0][::2] == (200, b"off")


def test_a_client_that_leaves_while_it_waits_or_reads_leaves_the_session_free(held: Held) -> None:
    held.request("PUT", "/files/large", b"x" * (8 * MIB))
    for target in ("/files/large", "/archive"):
        line = http.client.HTTPConnection(ME, held.server.port, timeout=PATIENCE)
        line.request("GET", target, headers={"X-Session-Id": held.token})
        line.getresponse().read(10)
        line.close()
    assert held.socket.run("print(1)")["stdout"] == "1\n"


def test_a_download_goes_on_after_the_file_and_the_session_are_gone(held: Held) -> None:
    data = bytes(range(256)) * (MIB * 8 // 256)
    held.request("PUT", "/files/large", data)
    line = http.client.HTTPConnection(ME, held.server.port, timeout=PATIENCE)
    line.request("GET", "/files/large", headers={"X-Session-Id": held.token})
    answer = line.getresponse()
    assert answer.read(1000) == data[:1000]
    held.socket.run("import os; os.remove('large')")
    held.request("DELETE", "/session")
    assert answer.read() == data[1000:]
    line.close()


def test_a_file_that_shrinks_during_a_download_is_not_sent_as_whole(held: Held) -> None:
    held.request("PUT", "/files/large", b"x" * (8 * MIB))
    line = http.client.HTTPConnection(ME, held.server.port, timeout=PATIENCE)
    line.sock = None
    line.request("GET", "/files/large", headers={"X-Session-Id": held.token})
    answer = line.getresponse()
    held.socket.run("import os; os.truncate('large', 0)")
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        answer.read()
    line.close()


def test_after_a_branch_each_session_has_its_own_version(server, held: Held) -> None:
    held.request("PUT", "/files/a", b"first")
    branch = held.socket.ask("branch", {})["data"]
    held.request("PUT", "/files/a", b"second")
    with peer(server, named=True) as socket:
        socket.resume(branch["token"])
        assert held.request("GET", "/files/a", X_Session_Id=branch["token"])[2] == b"first"
    assert held.request("GET", "/files/a")[2] == b"second"
    held.socket.run("open('a', 'w').write('third'); import os; os._exit(1)")
    assert held.request("GET", "/files/a")[2] == b"second"


def test_a_plain_http_session_has_files_too(server) -> None:
    _, headers, _ = ask(server, "POST", "/reset", {"context": "x"}, X_Session_Id="new")
    token = headers["X-Session-Id"]
    assert ask(server, "PUT", "/files/a", b"1", X_Session_Id=token)[0] == 201
    assert ask(server, "GET", "/files/a", X_Session_Id=token)[2] == b"1"
    ask(server, "DELETE", "/session", X_Session_Id=token)
    assert ask(server, "GET", "/files/a", X_Session_Id=token)[0] == 404

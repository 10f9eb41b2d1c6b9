"""`files.put`, `get`, `list` and `archive`: the same wherever there is a session."""

from __future__ import annotations

import asyncio
import inspect
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from errno import errorcode
from pathlib import Path
from typing import Any

import pytest

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, NotReset, REPLEnv
from repl_env.client.address import ServerAccess
from repl_env.client.files import FileTransfer, RemoteFiles, SyncRemoteFiles
from repl_env.env.environment import REPLEnvironment
from repl_env.errors import BadReply, NotSupported, ServerError, ServerUnavailable
from repl_env.models import REPLAction
from repl_sandbox import AsyncSandbox, Limits, Sandbox
from repl_sandbox.session.files_api import AsyncSessionFiles, SessionFiles
from tests.server.conftest import serving

LIMITS = Limits(timeout=60, workspace="8MiB", file_size="4MiB")
METHODS = ("put", "get", "list", "archive")
LARGE = b"0123456789" * 300_000


@pytest.fixture(scope="module")
def server():
    with serving({"limits": LIMITS, "recovery": "snapshot"}) as running:
        yield running


@pytest.fixture(scope="module")
def small():
    with Sandbox(require="confined", limits=LIMITS) as sandbox:
        yield sandbox


class Place:
    """The files of one kind of session: `call` runs a method, `code` runs code in it."""

    def __init__(self, files: Any, run: Callable[[str], Any]) -> None:
        self.files, self.run = files, run

    async def call(self, name: str, *args: Any, **named: Any) -> Any:
        found = getattr(self.files, name)(*args, **named)
        return await found if inspect.isawaitable(found) else found

    async def code(self, text: str) -> None:
        found = self.run(text)
        found = await found if inspect.isawaitable(found) else found
        outcome = getattr(found, "observation", found)
        assert outcome.result.success if hasattr(outcome, "result") else outcome.ok, outcome


@asynccontextmanager
async def session(server, small):
    with small.session() as session:
        yield Place(session.files, session.run)


@asynccontextmanager
async def async_session(server, small):
    async with AsyncSandbox(require="confined", limits=LIMITS) as sandbox, sandbox.session() as one:
        yield Place(one.files, one.run)


@asynccontextmanager
async def local(server, small):
    with LocalREPLEnv(sandbox=small) as env:
        env.reset()
        yield Place(env.files, env.execute)


@asynccontextmanager
async def async_local(server, small):
    async with AsyncLocalREPLEnv(limits=LIMITS, require="confined") as env:
        await env.reset()
        yield Place(env.files, env.execute)


@asynccontextmanager
async def environment(server, small):
    with closing(REPLEnvironment(sandbox=small)) as env:
        env.reset()
        yield Place(env.files, lambda code: env.step(REPLAction(code=code)))


@asynccontextmanager
async def remote(server, small):
    async with REPLEnv(server.url) as env:
        await env.reset()
        yield Place(env.files, env.execute)


@asynccontextmanager
async def sync_remote(server, small):
    with REPLEnv(server.url).sync() as env:
        env.reset()
        yield Place(env.files, env.execute)


PLACES = [session, async_session, local, async_local, environment, remote, sync_remote]


def unpacked(archive: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        read = ((each.name, tar.extractfile(each)) for each in tar)
        return {name: None if file is None else file.read() for name, file in read}


@pytest.mark.parametrize("kind", [AsyncSessionFiles, RemoteFiles, SyncRemoteFiles])
@pytest.mark.parametrize("name", METHODS)
def test_the_arguments_are_the_same(kind: type[Any], name: str) -> None:
    theirs, ours = (inspect.signature(getattr(each, name)) for each in (kind, SessionFiles))
    plain = [(each.name, each.kind, each.default) for each in theirs.parameters.values()]
    assert plain == [(each.name, each.kind, each.default) for each in ours.parameters.values()]
    assert theirs.return_annotation == ours.return_annotation


class Text:
    """A file that is open in text mode."""

    def read(self, size: int) -> str:
        return "text"


STORY: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("put", ("a/b.bin", LARGE), {}, None),
    ("put", ("text", "gr\u00fcn"), {}, None),
    ("put", ("\udcff\n;?#", b"odd"), {}, None),
    ("put", ("empty", b""), {}, None),
    ("get", ("text",), {}, "gr\u00fcn".encode()),
    ("get", ("./a//b.bin",), {}, LARGE),
    ("get", ("\udcff\n;?#",), {}, b"odd"),
    ("get", ("empty",), {}, b""),
    ("get", ("a/b.bin",), {"limit": "3MB"}, LARGE),
]
FAILURES: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str | None]] = [
    ("get", ("missing",), {}, FileNotFoundError, "ENOENT"),
    ("get", ("a",), {}, IsADirectoryError, "EISDIR"),
    ("get", ("text/x",), {}, NotADirectoryError, "ENOTDIR"),
    ("get", ("link",), {}, OSError, "ELOOP"),
    ("get", ("a/b.bin",), {"limit": 10}, OSError, "EFBIG"),
    ("get", ("../x",), {}, ValueError, None),
    ("get", ("",), {}, ValueError, None),
    ("get", (b"x",), {}, TypeError, None),
    ("get", ("text",), {"limit": 1.5}, TypeError, None),
    ("get", ("text",), {"to": 5}, TypeError, None),
    ("put", ("a", b"x"), {}, IsADirectoryError, "EISDIR"),
    ("put", ("link/x", b"x"), {}, NotADirectoryError, "ENOTDIR"),
    ("put", ("x", b"x" * (5 << 20)), {}, OSError, "EFBIG"),
    ("put", ("x", 5), {}, TypeError, None),
    ("put", ("x", "\ud800"), {}, ValueError, None),
    ("put", ("x", Text()), {}, TypeError, None),
    ("put", ("x", Path("/nothing/here")), {}, FileNotFoundError, "ENOENT"),
    ("list", ("text",), {}, NotADirectoryError, "ENOTDIR"),
    ("list", ("none",), {}, FileNotFoundError, "ENOENT"),
    ("list", (), {"limit": 0}, ValueError, None),
    ("list", (), {"limit": "9"}, TypeError, None),
    ("archive", ("none",), {}, FileNotFoundError, "ENOENT"),
    ("archive", (), {"limit": 10}, OSError, "EFBIG"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda each: each.__name__)
async def test_results_and_errors_are_the_same(server, small, place: Any, tmp_path: Path) -> None:
    async with place(server, small) as here:
        for name, args, named, wanted in STORY:
            assert await here.call(name, *args, **named) == wanted, (name, args)
        await here.code("import os\nos.symlink('/etc', 'link')\nopen('made', 'w').write('x')")
        files = await here.call("list")
        assert [(file.path, file.kind, file.size) for file in files] == [
            ("a", "directory", 0), ("a/b.bin", "file", len(LARGE)), ("empty", "file", 0),
            ("link", "symlink", 0), ("made", "file", 1), ("text", "file", 5),
            ("\udcff\n;?#", "file", 3),
        ]  # fmt: skip
        assert files.complete and files[0].modified > 1e9
        assert not (await here.call("list", limit=2)).complete
        for name, args, named, kind, errno in FAILURES:
            with pytest.raises(kind) as raised:
                await here.call(name, *args, **named)
            if errno is not None:
                found = raised.value
                assert isinstance(found, OSError)
                assert errorcode[found.errno or 0] == errno, (name, args, found)
        assert await here.call("list") == files

        (tmp_path / "local").write_bytes(LARGE)
        await here.call("put", "from/path", tmp_path / "local")
        await here.call("put", "object", io.BytesIO(b"object"))
        assert await here.call("get", "from/path", to=tmp_path / "back") == len(LARGE)
        assert (tmp_path / "back").read_bytes() == LARGE
        into = io.BytesIO()
        assert await here.call("get", "object", to=into) == 6
        assert into.getvalue() == b"object"
        packed = await here.call("archive", to=tmp_path / "all.tar")
        assert packed == (tmp_path / "all.tar").stat().st_size
        members = unpacked((tmp_path / "all.tar").read_bytes())
        assert sorted(members) == sorted(
            ["a", "a/b.bin", "empty", "from", "from/path", "made", "object", "text", "\udcff\n;?#"]
        )
        assert unpacked(await here.call("archive", "from")) == {"from/path": LARGE}


@pytest.mark.parametrize("kind", [SessionFiles, AsyncSessionFiles, RemoteFiles, SyncRemoteFiles])
def test_files_show_their_methods_and_name_them_for_a_guess(kind) -> None:
    files = kind.__new__(kind)

    assert repr(files).startswith(f"<{kind.__name__} with archive, ")
    assert not hasattr(files, "read")
    with pytest.raises(AttributeError, match=r"'read'; it has archive, .*get, .*list, .*put"):
        _ = files.read


def test_without_an_episode_there_are_no_files(server, small) -> None:
    with LocalREPLEnv(sandbox=small) as env, pytest.raises(NotReset):
        env.files.list()
    with REPLEnv(server.url).sync() as client, pytest.raises(NotReset):
        client.files.list()
    with pytest.raises(NotReset):
        REPLEnv(server.url).sync().files.get("x")


async def test_a_step_and_a_transfer_of_one_client_take_turns(server) -> None:
    async with REPLEnv(server.url) as env:
        await env.reset()
        step = asyncio.create_task(env.execute("open('made', 'w').write('x')"))
        await asyncio.sleep(0)
        assert await env.files.get("made") == b"x"
        assert (await step).observation.result.success


async def test_after_a_branch_each_client_has_its_own_version(server) -> None:
    async with REPLEnv(server.url) as env:
        await env.reset()
        await env.files.put("a", b"first")
        async with await env.branch() as branch:
            await branch.files.put("a", b"second")
            assert (await env.files.get("a"), await branch.files.get("a")) == (b"first", b"second")


@contextmanager
def saying(*answers: bytes) -> Iterator[FileTransfer]:
    """A transfer with a server that answers one request after the other, and closes each time."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                line, _ = listener.accept()
                with line:
                    asked = b""
                    while b"\r\n\r\n" not in asked:
                        asked += line.recv(1 << 16)
                    received.append(asked)
                    with suppress(ConnectionError):  # the client has read enough
                        line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        transfer = FileTransfer(ServerAccess.of(f"http://127.0.0.1:{port}", "key"), "token")
        transfer.received = received  # type: ignore[attr-defined]
        try:
            yield transfer
        finally:
            transfer.close()
            thread.join()


def http(status: str, body: bytes = b"", **headers: object) -> bytes:
    named = {"Content_Length": len(body), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


REFUSED = b'{"message": "No\\u001b[31m", "code": "FILE_ERROR", "errno": "%b"}'
ANSWERS: list[tuple[bytes, str, type[Exception]]] = [
    (http("200 OK", b"short", Content_Length=100), "get", ServerUnavailable),
    (http("200 OK", b"", Content_Length=1 << 40), "get", OSError),
    (http("200 OK", b"", Transfer_Encoding="chunked"), "get", BadReply),
    (http("206 Partial Content", b"x"), "get", ServerError),
    (http("302 Found", Location="http://evil.example/"), "get", ServerError),
    (http("404 Not Found", b"<html>"), "get", NotSupported),
    (http("409 Conflict", REFUSED % b"EISDIR"), "get", IsADirectoryError),
    (http("409 Conflict", REFUSED % b"EVIL"), "get", ServerError),
    (http("409 Conflict", b'{"code": "FILE_ERROR", "errno": ["x"]}'), "get", ServerError),
    (http("200 OK", b"[]"), "list", BadReply),
    (http("200 OK", b'{"files": [{"path": 5}], "complete": true}'), "list", BadReply),
    (http("200 OK", b'{"files": [[]], "complete": true}'), "list", BadReply),
    (http("200 OK", b"[" * 100_000), "list", BadReply),
    (b"\x00\xff" * 1000, "list", ServerUnavailable),
    (b"", "get", ServerUnavailable),
]


@pytest.mark.parametrize(("answer", "name", "kind"), ANSWERS)
def test_a_wrong_answer_is_an_error_and_leaves_no_file(
    answer: bytes, name: str, kind: type[Exception], tmp_path: Path
) -> None:
    arguments: tuple[Any, ...] = ("", 10) if name == "list" else ("x", tmp_path / "file", "1GiB")
    with saying(answer) as transfer, pytest.raises(kind) as raised:
        getattr(transfer, name)(*arguments)
    assert "key" not in str(raised.value) and "\x1b" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_endless_body_ends_at_the_limit() -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    head = http("200 OK", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
    with saying(head + chunk * 90) as transfer, pytest.raises(BadReply):
        transfer.archive("", io.BytesIO(), 1 << 20)


def part(first: int, body: bytes) -> bytes:
    return http("206 Partial Content", body, Content_Range=f"bytes {first}-9/10", ETag='"v"')


def test_a_broken_download_goes_on_where_it_broke() -> None:
    begin = http("200 OK", b"0123", Content_Length=10, ETag='"v"')
    more = http("206 Partial Content", b"45", Content_Length=6, ETag='"v"')
    with saying(begin, more, b"", part(6, b"6789")) as transfer:
        assert transfer.get("x", None, None) == b"0123456789"
        asked = [b"bytes=%d-" % first for first in (4, 6, 6)]
        heads = transfer.received[1:]  # type: ignore[attr-defined]
        assert len(heads) == len(asked)
        for range_, head in zip(asked, heads, strict=True):
            assert range_ in head and b'If-Range: "v"' in head


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (http("200 OK", b"abcdefghij", ETag='"w"'), ServerError),
        (http("206 Partial Content", b"456789999999", ETag='"v"'), BadReply),
        (http("404 Not Found", b'{"code": "NO_FILE", "message": "x", "errno": "ENOENT"}'), OSError),
    ],
)
def test_a_file_that_changed_meanwhile_is_not_put_together(
    second: bytes, kind: type[Exception], tmp_path: Path
) -> None:
    begin = http("200 OK", b"0123", Content_Length=10, ETag='"v"')
    with saying(begin, second) as transfer, pytest.raises(kind):
        transfer.get("x", tmp_path / "file", None)
    assert list(tmp_path.iterdir()) == []

"""`session.files`: what the host puts into a session's workspace, reads from it and lists."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EFBIG, EINVAL, ENOSPC
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    File,
    Limits,
    Sandbox,
    SandboxError,
    Session,
    SessionBusy,
    SessionClosed,
)
from repl_sandbox.protocol import control
from repl_sandbox.session.core import Core
from tests.internals import (
    file_request,
    init_pid,
    session_links,
    set_file_request,
    set_file_timeout,
    worker_pid,
)
from tests.sandbox.shown_value import value
from tests.waiting import eventually

SMALL = Limits(timeout=60, workspace="4MiB", file_size="3MiB")


@pytest.fixture(scope="module", params=["jailed", "process"])
def small(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    python = request.getfixturevalue("open_python") if request.param == "confined" else None
    with Sandbox(isolation=request.param, python=python, limits=SMALL) as sandbox:
        yield sandbox


def paths(session: Session) -> list[str]:
    return [file.path for file in session.files.list()]


def test_a_put_file_is_available_to_the_next_cell_and_owned_by_the_code(held: Session) -> None:
    held.files.put("notes/today/a.txt", "gr\u00fcn")
    held.files.put("raw.bin", memoryview(b"\x00\xff"))
    held.files.put("empty", b"")
    code = "(open('notes/today/a.txt').read(), open('raw.bin', 'rb').read(), open('empty').read())"
    assert value(held, code) == "('gr\u00fcn', b'\\x00\\xff', '')"
    value(
        held,
        "import os\nassert os.stat('raw.bin').st_uid == os.stat('notes').st_uid == os.getuid()\n"
        "open('raw.bin', 'ab').write(b'!')\nos.rename('notes/today/a.txt', 'notes/b')\n"
        "os.rmdir('notes/today')",
    )
    assert held.files.get("raw.bin") == b"\x00\xff!"
    assert held.files.get("./notes//b") == "gr\u00fcn".encode()


def test_list_files_has_all_files_in_frozen_rows(held: Session) -> None:
    value(
        held,
        "import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('four')\n"
        "os.symlink('/etc', 'd/link')\nos.symlink('d', 'loop')\nos.utime('d/e/f', (5, 7.5))",
    )
    files = held.files.list()
    assert [(file.path, file.kind) for file in files] == [
        ("d", "directory"),
        ("d/e", "directory"),
        ("d/e/f", "file"),
        ("d/link", "symlink"),
        ("loop", "symlink"),
    ]
    assert files[2] == File("d/e/f", 4, "file", 7.5)
    assert files.complete
    with pytest.raises(dataclasses.FrozenInstanceError):
        files[2].size = 5  # type: ignore[misc]
    assert [file.path for file in held.files.list("d/e")] == ["d/e/f"]
    assert len(held.files.list("d/e", limit=1)) == 1
    cut = held.files.list(limit=2)
    assert (len(cut), cut.complete) == (2, False)
    copy = pickle.loads(pickle.dumps(cut))
    assert (copy, copy.complete) == (cut, False)
    with pytest.raises(FileNotFoundError, match="nothing"):
        held.files.list("nothing")
    with pytest.raises(NotADirectoryError, match="d/e/f"):
        held.files.list("d/e/f")


def test_many_files_are_put_in_one_call(held: Session) -> None:
    """Each cost a process of its own, and a look at all that were there before it."""
    files = {f"{n % 7}/{n % 10}/{n}.txt": str(n) for n in range(300)}
    files |= {"large": "x" * (1 << 20), "last": ""}
    held.files.put("0/0/0.txt", "before")
    held.files.put_all(files)
    count = "sum(len(names) for _, _, names in os.walk('.'))"
    assert value(held, f"import os; {count}, os.path.getsize('large')") == f"(302, {1 << 20})"
    assert value(held, "open('3/4/94.txt').read(), open('0/0/0.txt').read()") == ("('94', '0')")
    held.run("import os; os._exit(1)")
    assert value(held, f"import os; {count}") == "302"
    held.files.put_all({})


def test_files_put_before_a_failing_one_are_kept(held: Session) -> None:
    value(held, "import os; os.mkdir('taken')")
    with pytest.raises(IsADirectoryError) as raised:
        held.files.put_all({"a": "1", "b/c": b"2", "taken": "3", "d": "4"})
    assert raised.value.filename == "taken"
    assert paths(held) == ["a", "b", "b/c", "taken"]
    held.run("os._exit(1)")
    assert paths(held) == ["a", "b", "b/c", "taken"]


@pytest.mark.parametrize(
    ("files", "error", "named"),
    [
        (["a"], TypeError, "files must be a dict"),
        ({"a": "1", "b": 3}, TypeError, "'b' must be bytes or str"),
        ({"a": "1", "../b": "2"}, ValueError, "path"),
        ({"a": "1", 3: "2"}, TypeError, "path must be a str"),
        ({"a": "1", "b": b"x" * (4 << 20)}, OSError, "file_size"),
    ],
)
def test_invalid_paths_of_many_files_are_reported_before_any_is_put(
    held: Session, files: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        held.files.put_all(files)
    assert paths(held) == []


def test_many_files_are_read_in_one_call_with_an_error_for_each_missing_one(held: Session) -> None:
    files = {f"{n % 7}/{n}.txt": str(n).encode() for n in range(200)}
    held.files.put_all(files)
    value(held, "import os; os.symlink('0/0.txt', 'link')")
    assert held.files.get_all(files) == files
    found = held.files.get_all(["0/0.txt", "0", "absent/x", "link", "1/1.txt"])
    assert [found["0/0.txt"], found["1/1.txt"]] == [b"0", b"1"]
    refused = [found[path] for path in ("0", "absent/x", "link")]
    assert list(map(type, refused)) == [IsADirectoryError, FileNotFoundError, OSError]
    assert [error.filename for error in refused if isinstance(error, OSError)] == [
        "0", "absent/x", "link",
    ]  # fmt: skip
    assert held.files.get_all([]) == {}
    assert value(held, "len(os.listdir('.'))") == "8"


def test_many_files_are_read_up_to_the_limit(held: Session) -> None:
    held.files.put_all({"a": b"x" * 100, "b": b"x" * 100, "c": b"x" * 20})
    found = held.files.get_all(list("abc"), limit=130)
    assert (found["a"], found["c"]) == (b"x" * 100, b"x" * 20)
    assert isinstance(found["b"], OSError) and found["b"].errno == EFBIG
    with pytest.raises(ValueError, match="path"):
        held.files.get_all(["a", "../b"])


def test_of_many_files_over_the_limit_the_first_is_named(held: Session) -> None:
    with pytest.raises(OSError, match=r"workspace.*'b'"):
        held.files.put_all(dict.fromkeys("ab", b"x" * (3 << 20)))
    assert "b" not in paths(held)


def test_names_may_have_newlines_and_bytes_that_are_no_utf8(held: Session) -> None:
    value(held, "open(b'\\xff\\n\\x01\"', 'w').write('odd')")
    (file,) = held.files.list()
    assert os.fsencode(file.path) == b'\xff\n\x01"'
    assert held.files.get(file.path) == b"odd"
    held.files.put(file.path, b"even")
    assert value(held, "open(b'\\xff\\n\\x01\"').read()") == "'even'"


def test_a_file_is_replaced_atomically_and_keeps_its_permissions(held: Session) -> None:
    value(
        held,
        "import os\nopen('tool', 'w').write('a long old content')\nos.chmod('tool', 0o750)\n"
        "os.link('tool', 'other')\nreader = open('tool')",
    )
    held.files.put("tool", b"new")
    assert held.files.get("tool") == b"new"
    # A reader that has the old file open, and another name for it, still have the old content.
    assert value(held, "reader.read()") == "'a long old content'"
    assert held.files.get("other") == b"a long old content"
    assert value(held, "oct(os.stat('tool').st_mode)") == "'0o100750'"


@pytest.mark.parametrize("path", ["directory", "link", "dangling", "socket"])
def test_nothing_but_a_regular_file_is_read_or_replaced(held: Session, path: str) -> None:
    value(
        held,
        "import os\nos.mkdir('directory')\nopen('target', 'w').write('x')\n"
        "os.symlink('target', 'link')\nos.symlink('none', 'dangling')",
    )
    if path == "socket":
        bound = held.run("import socket\nsocket.socket(socket.AF_UNIX).bind('socket')")
        if not bound.ok:
            pytest.skip("this tier makes no sockets with names")
    kind = IsADirectoryError if path == "directory" else OSError
    for call in (lambda: held.files.get(path), lambda: held.files.put(path, b"y")):
        with pytest.raises(kind, match=path):
            call()
    assert held.files.get("target") == b"x"
    assert path in paths(held)
    assert "none" not in paths(held)


def test_errors_are_os_errors_with_the_path(held: Session) -> None:
    with pytest.raises(FileNotFoundError, match="'no/file'") as missing:
        held.files.get("no/file")
    assert missing.value.filename == "no/file"
    held.files.put("file", b"x")
    for call in (lambda: held.files.get("file/x"), lambda: held.files.put("file/x/y", b"")):
        with pytest.raises(NotADirectoryError, match="'file/x"):
            call()
    assert paths(held) == ["file"]


def test_the_host_has_the_permissions_of_the_code(held: Session) -> None:
    if held.isolation.tier == "process" and os.geteuid() == 0:
        pytest.skip("code of this tier is root here, and may")
    value(
        held,
        "import os\nos.mkdir('closed')\nopen('closed/a', 'w').write('x')\n"
        "open('own', 'w').write('x')\nos.chmod('closed', 0o500)\nos.chmod('own', 0)",
    )
    with pytest.raises(PermissionError, match="own"):
        held.files.get("own")
    with pytest.raises(PermissionError, match="closed/new/b"):
        held.files.put("closed/new/b", b"x")
    assert held.files.get("closed/a") == b"x"
    value(held, "os.chmod('closed', 0)")
    files = held.files.list()
    assert [file.path for file in files] == ["closed", "own"]
    assert not files.complete


def test_a_file_over_the_limit_is_not_read_and_a_sparse_one_is_cheap(held: Session) -> None:
    value(held, "open('big', 'wb').write(b'x' * 1000)")
    assert held.files.get("big", limit=1000) == b"x" * 1000
    with pytest.raises(OSError, match=r"1,000 bytes; the limit is 999.*'big'") as refused:
        held.files.get("big", limit=999)
    assert refused.value.errno == EFBIG
    assert held.files.get("big", limit="1KiB") == b"x" * 1000


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
def test_a_file_over_the_quota_leaves_nothing_behind(held: Session, there: bool) -> None:
    if there:
        held.files.put("deep/er/file", b"old")
    before = paths(held)
    value(held, "open('filler', 'wb').write(b'x' * 2_500_000)")
    for size, errno in ((2_900_000, ENOSPC), (3_200_000, EFBIG)):
        with pytest.raises(OSError, match="deep/er/file") as refused:
            held.files.put("deep/er/file", b"y" * size)
        assert refused.value.errno == errno
    assert paths(held) == sorted([*before, "filler"])
    if there:
        assert held.files.get("deep/er/file") == b"old"
    value(held, "import os; os.unlink('filler')")
    held.files.put("deep/er/file", b"y" * 2_900_000)
    assert value(held, "len(open('deep/er/file').read())") == "2900000"


def test_files_outlive_the_worker(held: Session) -> None:
    held.files.put("before", b"1")
    assert held.run("import os; os._exit(1)").state == "rolled_back"
    held.files.put("after", b"2")
    assert (held.files.get("before"), paths(held)) == (b"1", ["after", "before"])
    # A worker that dies when no cell runs is replaced by the next cell; files need none.
    worker = psutil.Process(worker_pid(held))
    worker.kill()
    held.files.put("third", b"3")
    assert held.files.get("third") == b"3"
    assert not psutil.wait_procs([worker], timeout=60)[
        1
    ]  # otherwise it may receive the cell, and die of it
    assert value(held, "open('third').read()") == "'3'"


def test_an_init_that_ends_before_storing_a_file_ends_the_session(
    held: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    init, ask = psutil.Process(init_pid(held)), file_request()

    @contextmanager
    def ended(core: Core, op: str, *rest: Any) -> Iterator[Any]:
        if op == "keep":
            init.suspend()
        with ask(core, op, *rest) as answerer:
            if op == "keep":
                init.kill()
            yield answerer

    set_file_request(monkeypatch, ended)
    with pytest.raises(SessionClosed, match="init process is gone"):
        held.files.put("name", b"1")


def test_a_call_during_which_the_session_is_closed_raises(
    small: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = file_request()
    with small.session() as session:
        closing = threading.Thread(target=session.close)
        init = psutil.Process(init_pid(session))

        @contextmanager
        def closed(*args: Any) -> Iterator[Any]:
            with ask(*args) as answerer:
                closing.start()
                eventually(lambda: not init.is_running())
                yield answerer  # which answers for each file, and only when it is asked

        set_file_request(monkeypatch, closed)
        with pytest.raises(SessionClosed, match="was closed amid this call"):
            session.files.get_all(["one"])
        closing.join()


def test_a_removed_workspace_is_no_escape(held: Session, tmp_path: Path) -> None:
    """Without a mount the code can replace the directory of that name."""
    (tmp_path / "secret").write_text("of the host")
    if held.isolation.tier == "jailed":
        outcome = held.run("import os\nos.rename('/workspace', '/tmp/w')")
        assert not outcome.ok
        return
    value(
        held,
        "import os\nhome = os.environ['HOME']\nos.rename(home, home + '-old')\n"
        f"os.symlink({str(tmp_path)!r}, home)",
    )
    for call in (
        lambda: held.files.get("secret"),
        lambda: held.files.put("secret", b"x"),
        lambda: held.files.list(),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    value(held, "os.unlink(home)")
    held.files.put("x", b"y")
    assert value(held, "open(home + '/x').read()") == "'y'"
    assert (tmp_path / "secret").read_text() == "of the host"


def test_file_calls_do_not_wait_for_a_cell(held: Session) -> None:
    started = threading.Event()

    def run() -> None:
        held.run("print('go', flush=True)\nwhile True: pass", on_output=lambda *_: started.set())

    cell = threading.Thread(target=run)
    cell.start()
    assert started.wait(60)
    for call in (
        lambda: held.files.get("x"),
        lambda: held.files.put("x", b""),
        lambda: held.files.list(),
    ):
        with pytest.raises(SessionBusy):
            call()
    held.interrupt()
    cell.join()
    held.files.put("x", b"")


def test_a_closed_session_has_no_files(small: Sandbox) -> None:
    session = small.session()
    files = session.files
    session.close()
    with pytest.raises(SessionClosed):
        files.list()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "names no file"),
        (".", "names no file"),
        ("../x", r"'\.\.'"),
        ("a/../b", r"'\.\.'"),
        ("/etc/passwd", "relative to the workspace"),
        ("/workspace/../etc/passwd", r"'\.\.'"),
        ("/workspacex/a", "relative to the workspace"),
        ("a\0b", "null character"),
        ("\ud800", "cannot be encoded"),
        ("a" * 256, "256 bytes"),
        ("a/" * 3000, "6,000 bytes"),
        ("a/" * 70, "64 directories deep"),
    ],
)
def test_a_bad_path_is_refused_before_anything_is_done(
    held: Session, path: str, words: str
) -> None:
    if path.startswith("/workspace/") and held.isolation.tier != "jailed":
        words = "relative to the workspace"
    for call in (lambda: held.files.get(path), lambda: held.files.put(path, b"")):
        with pytest.raises(ValueError, match=words) as refused:
            call()
        assert str(refused.value).startswith("path")


def test_wrong_types_name_the_argument(session: Session) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: session.files.get(b"x"), "path must be a str"),  # type: ignore[call-overload]
        (lambda: session.files.put(Path("x"), b""), "path must be a str"),  # type: ignore[arg-type]
        (lambda: session.files.put("x", 5), "data must be bytes or str"),  # type: ignore[arg-type]
        (lambda: session.files.get("x", limit=1.5), "limit must be an int"),  # type: ignore[call-overload]
        (lambda: session.files.list(limit="9"), "limit must be an int"),  # type: ignore[arg-type]
    ]
    for call, words in calls:
        with pytest.raises(TypeError, match=words):
            call()
    for limit in (0, -1, 1 << 30):
        with pytest.raises(ValueError, match="limit"):
            session.files.list(limit=limit)
    with pytest.raises(ValueError, match="data cannot be written as UTF-8"):
        session.files.put("x", "\ud800")


def test_a_path_may_begin_with_the_workspace_of_a_jailed_session(held: Session) -> None:
    if held.isolation.tier == "jailed":
        held.files.put("/workspace/a/b", b"x")
        assert held.files.get("a/b") == b"x"
        assert [file.path for file in held.files.list("/workspace")] == ["a", "a/b"]
    else:
        with pytest.raises(ValueError, match="relative"):
            held.files.put("/workspace/a/b", b"x")


async def test_file_calls_on_an_event_loop() -> None:
    async with AsyncSandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        await session.files.put("a/b", "x" * 100_000)
        assert (await session.run("len(open('a/b').read())")).value == "100000"
        assert await session.files.get("a/b") == b"x" * 100_000
        assert [file.path for file in await session.files.list()] == ["a", "a/b"]
        with pytest.raises(FileNotFoundError, match="none"):
            await session.files.get("none")
        with pytest.raises(ValueError, match="path"):
            await session.files.get("../x")
        one, other = session.files.list(), session.files.list()
        results = await asyncio.gather(one, other, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["Listing", "SessionBusy"]


async def test_a_cancelled_call_leaves_the_session_free() -> None:
    async with AsyncSandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        task = asyncio.create_task(session.files.put("a", b"x" * 2_000_000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # All files or none.
        assert [file.size for file in await session.files.list()] in ([], [2_000_000])


def test_a_descriptor_that_is_no_file_is_not_read(held: Session) -> None:
    """EINVAL has no exception class of its own, so its message is compared."""
    if held.isolation.tier != "process":
        pytest.skip("code of the other tiers cannot make a FIFO")
    value(held, "import os; os.mkfifo('fifo')")
    for call in (lambda: held.files.get("fifo"), lambda: held.files.put("fifo", b"")):
        with pytest.raises(OSError, match="Not a regular file: 'fifo'") as refused:
            call()
        assert refused.value.errno == EINVAL
    assert held.files.list()[0].kind == "other"


def test_a_trickled_listing_has_one_time_limit(
    held: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if code with the uid of the file helper stopped and continued it."""
    set_file_timeout(monkeypatch, 0.2)
    slow, host = control.pair()
    monkeypatch.setattr(session_links(held), "control", host)
    over = threading.Event()

    def drip() -> None:
        _, (end,) = control.receive_with_descriptors(slow)
        with control.open_end(end) as clerk, suppress(ConnectionError):
            for _ in range(200):
                control.send(clerk, {"rows": [["a", "file", 1, 0.0]]})
                over.wait(0.05)
            control.send(clerk, {"complete": True})

    thread = threading.Thread(target=drip)
    with slow, host:
        thread.start()
        with pytest.raises(SandboxError, match=r"not available within 0\.2"):
            held.files.list(limit=1)
        over.set()
        thread.join()


def test_a_session_at_its_process_limit_has_no_process_for_files(small: Sandbox) -> None:
    """Only a control group counts the process that works on files among the session's."""
    with small.session(limits=dataclasses.replace(SMALL, processes=4)) as session:
        grouped = any(layer.name == "cgroup" and layer.active for layer in session.isolation.layers)
        if not grouped:
            pytest.skip("no control group")
        value(
            session,
            "import os, signal\nchildren = []\ntry:\n    while True:\n"
            "        children.append(os.fork())\n        if not children[-1]:\n"
            "            read, write = os.pipe()\n            os.close(1)\n"
            "            os.close(2)\n            os.read(read, 1)\n"
            "except OSError:\n    pass",
        )
        for call in (lambda: session.files.put("x", b"y"), lambda: session.files.list()):
            for _ in range(5):
                with pytest.raises(BlockingIOError, match="at their limit"):
                    call()
        value(session, "for child in children:\n    os.kill(child, signal.SIGKILL); os.wait()")
        session.files.put("x", b"y")
        assert session.files.get("x") == b"y"


def test_caches_of_libraries_are_outside_the_workspace(small: Sandbox) -> None:
    with small.session() as session:
        value(
            session,
            "import os\nfor name in ('XDG_CACHE_HOME', 'MPLCONFIGDIR'):\n"
            "    os.makedirs(os.environ[name])\n"
            "    open(os.environ[name] + '/x', 'w').close()",
        )
        assert not session.files.list()


@pytest.mark.parametrize("path", ["orders.csv", "/tmp/mine/orders.csv"])
def test_a_file_of_the_host_has_a_hint_that_says_who_puts_files_there(path: str) -> None:
    with Sandbox() as sandbox, sandbox.session() as session:
        error = session.run(f"open({path!r})").error
        assert error is not None
        assert "the host puts files there" in error.traceback
        session.files.put("other.csv", "a")
        error = session.run("open('orders.csv')").error
        assert error is not None
        assert "the host puts files there" not in error.traceback
        error = session.run("open('/workspace/absent/x')").error
        assert error is not None
        assert "the host puts files there" not in error.traceback


def test_one_path_in_place_of_a_list_is_refused(held: Session) -> None:
    with pytest.raises(TypeError, match="paths must be a list of paths, not str"):
        held.files.get_all("outdir")

"""`session.files` with local files, streams and archives, beside code that changes every name."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from errno import EFBIG, EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import AsyncSandbox, Limits, Sandbox, Session, SessionBusy
from tests.sandbox.shown_value import value

SMALL = Limits(timeout=60, workspace="8MiB", file_size="4MiB")
LARGE = b"0123456789" * 300_000


@pytest.fixture(scope="module", params=["jailed", "process"])
def small(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(isolation=request.param, limits=SMALL) as sandbox:
        yield sandbox


def unpacked(archive: bytes) -> dict[str, bytes | None]:
    """The members of an archive by name; None for a directory."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {
            member.name: None if file is None else file.read()
            for member in tar
            if (file := tar.extractfile(member) if member.isfile() else None) or True
        }


def test_a_local_file_goes_in_and_out_by_path_and_as_an_object(
    held: Session, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(LARGE)
    held.files.put("by/path", tmp_path / "in")
    with open(tmp_path / "in", "rb") as file:
        file.seek(5)
        held.files.put("object", file)
    held.files.put("memory", io.BytesIO(b"x"))
    sizes = "[os.path.getsize(name) for name in ('by/path', 'object', 'memory')]"
    assert value(held, f"import os; {sizes}") == str([len(LARGE), len(LARGE) - 5, 1])

    assert held.files.get("by/path", to=str(tmp_path / "out")) == len(LARGE)
    assert (tmp_path / "out").read_bytes() == LARGE
    into = io.BytesIO()
    assert held.files.get("object", to=into) == len(LARGE) - 5
    assert into.getvalue() == LARGE[5:]
    with open(tmp_path / "raw", "wb", buffering=0) as raw:
        assert held.files.get("by/path", to=raw) == len(LARGE)
    assert (tmp_path / "raw").read_bytes() == LARGE
    value(held, "open('empty', 'w').close()")
    assert held.files.get("empty", to=tmp_path / "none") == 0
    assert (tmp_path / "none").read_bytes() == b""


def test_a_local_file_stays_as_it_was_when_the_transfer_fails(
    held: Session, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    held.files.put("large", LARGE)
    calls: list[Callable[[], object]] = [
        lambda: held.files.get("missing", to=tmp_path / "kept"),
        lambda: held.files.get("large", to=tmp_path / "kept", limit=10),
        lambda: held.files.archive(to=tmp_path / "kept", limit=10),
        lambda: held.files.get("large", to=tmp_path / "none" / "kept"),
        lambda: held.files.put("x", tmp_path / "none"),
        lambda: held.files.put("x", tmp_path),
    ]
    for call in calls:
        with pytest.raises(OSError):
            call()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        held.files.get("large", to=tmp_path / "fifo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert [file.path for file in held.files.list()] == ["large"]


def test_a_link_to_a_local_file_is_written_through(held: Session, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    held.files.put("new", b"new")
    held.files.get("new", to=tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


class Endless(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return b"x" * (1 << 20)


@pytest.mark.parametrize(
    ("call", "errno"),
    [
        (lambda files: files.put("x", Endless()), EFBIG),
        (lambda files: files.put("x", b"x" * 4_500_000), EFBIG),
        (
            lambda files: (files.put("a", LARGE), files.put("b", LARGE), files.put("c", LARGE)),
            ENOSPC,
        ),
    ],
)
def test_a_stream_over_a_limit_leaves_nothing_behind(
    held: Session, call: Callable[[Any], object], errno: int
) -> None:
    with pytest.raises(OSError) as refused:
        call(held.files)
    assert refused.value.errno == errno
    assert not {"x", "c"} & {file.path for file in held.files.list()}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda files: files.put("x", io.StringIO("text")), "binary mode"),
        (lambda files: files.put("x", 5), "data must be bytes or str"),
        (lambda files: files.get("x", to=5), "to must be a path"),
        (lambda files: files.archive(to=b"x"), "to must be a path"),
        (lambda files: files.archive(5), "path must be a str"),
        (lambda files: files.archive(limit=1.5), "limit must be an int"),
    ],
)
def test_a_wrong_type_names_the_argument(
    held: Session, call: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        call(held.files)
    assert held.files.list() == ()


ODD = """
import os
os.makedirs('d/e'); open('d/e/f', 'w').write('four'); os.mkdir('empty'); open('zero', 'w').close()
open(b'\\xff\\n"', 'w').write('odd'); open('gr\\u00fcn' * 30, 'w').write('long')
open('tool', 'w').write('#!'); os.chmod('tool', 0o4755); os.link('tool', 'twin')
os.symlink('/etc', 'd/link'); os.symlink('d/e/f', 'to-f'); os.symlink('.', 'loop')
open('closed', 'w').write('x'); os.chmod('closed', 0)
"""


def test_an_archive_has_files_and_directories_alone_by_the_paths_of_a_list(held: Session) -> None:
    value(held, ODD)
    archive = held.files.archive()
    found = unpacked(archive)
    closed = {"closed": b"x"} if os.geteuid() == 0 and held.isolation.tier == "process" else {}
    assert found == {
        "d": None, "d/e": None, "d/e/f": b"four", "empty": None, "zero": b"", "tool": b"#!",
        "twin": b"#!", '\udcff\n"': b"odd", "gr\u00fcn" * 30: b"long", **closed,
    }  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert all(member.isfile() or member.isdir() for member in tar)
        assert (tar.getmember("tool").mode, tar.getmember("zero").mode) == (0o755, 0o644)
    assert unpacked(held.files.archive("d")) == {"d/e": None, "d/e/f": b"four"}
    assert unpacked(held.files.archive("empty")) == {}


def test_an_archive_of_large_files_is_written_in_pieces(held: Session, tmp_path: Path) -> None:
    held.files.put("large", LARGE)
    held.files.put("small", b"x")
    size = held.files.archive(to=tmp_path / "a.tar")
    assert size == (tmp_path / "a.tar").stat().st_size
    assert unpacked((tmp_path / "a.tar").read_bytes()) == {"large": LARGE, "small": b"x"}


def test_an_archive_over_its_limit_is_refused_before_the_first_byte(held: Session) -> None:
    """Sparse files take no space, and would be large when read."""
    value(held, "for n in range(30): open(f'{n}', 'wb').truncate(3 << 20)")
    into = io.BytesIO()
    with pytest.raises(OSError, match=r"94,371,840 bytes; the limit is 8,388,608") as refused:
        held.files.archive(to=into)
    assert refused.value.errno == EFBIG
    assert into.getvalue() == b""
    assert len(held.files.archive(limit="100MiB")) > 94_371_840
    for path, kind in (("0", NotADirectoryError), ("none", FileNotFoundError)):
        with pytest.raises(kind, match=path):
            held.files.archive(path)


def test_an_open_file_is_read_as_long_as_it_was(held: Session) -> None:
    held.files.put("grows", b"a" * 2_000_000)
    held.files.put("shrinks", b"b" * 2_000_000)
    held.files.put("replaced", b"old")
    with (
        held.files.open("grows") as grows,
        held.files.open("shrinks") as shrinks,
        held.files.open("replaced") as replaced,
    ):
        value(
            held,
            "import os\nopen('grows', 'a').write('c' * 10)\nos.truncate('shrinks', 1_500_000)\n"
            "open('new', 'w').write('new')\nos.replace('new', 'replaced')",
        )
        assert grows.read() == b"a" * 2_000_000
        assert shrinks.read(0, 1_500_000) == b"b" * 1_500_000
        with pytest.raises(OSError, match="became shorter") as shorter:
            shrinks.read()
        assert (shorter.value.errno, shorter.value.filename) == (EIO, "shrinks")
        assert replaced.read() == b"old"
        with held.files.open("replaced") as now:
            assert now.version != replaced.version
            assert now.read(1, 2) == b"ew"


@pytest.mark.parametrize("state", ["undone", "branch"])
def test_the_files_are_those_of_the_state_that_the_session_is_in(held: Session, state: str) -> None:
    held.files.put("a", b"first")
    value(held, "x = 1")
    if state == "undone":
        value(held, "open('a', 'w').write('second'); open('b', 'w').close()")
        held.rollback()
        assert held.files.get("a") == b"first"
        assert unpacked(held.files.archive()) == {"a": b"first"}
        return
    with held.branch() as branch:
        branch.files.put("a", b"of the branch")
        value(held, "open('a', 'w').write('second')")
        assert (held.files.get("a"), branch.files.get("a")) == (b"second", b"of the branch")
        assert unpacked(branch.files.archive()) == {"a": b"of the branch"}


SWAPPING = """
import os, threading
os.makedirs('real/deep')
for name in ('real/deep/passwd', 'real/passwd'): open(name, 'w').write('mine')
os.symlink('/etc', 'link'); os.rename('real', 'way')
stop = False
def swap():
    strays = 0
    while not stop:
        for old, new in ('way', 'real'), ('link', 'way'), ('way', 'link'), ('real', 'way'):
            try:
                os.rename(old, new)
            except OSError:  # the host has made a directory of that name
                strays += 1; os.rename(new, f'stray{strays}'); os.rename(old, new)
thread = threading.Thread(target=swap, daemon=True); thread.start()
"""


def test_a_directory_exchanged_for_a_link_leads_to_no_file_outside(held: Session) -> None:
    """A thread of the session renames between cells, while the host reads, packs and writes."""
    value(held, SWAPPING)
    before = Path("/etc/passwd").read_bytes()
    seen: set[bytes | None] = set()
    for n in range(150):
        calls: list[Callable[[], object]] = [
            lambda: seen.add(held.files.get("way/passwd")),
            lambda: seen.update(
                content
                for name, content in unpacked(held.files.archive("way")).items()
                if name.endswith("passwd")
            ),
            lambda n=n: held.files.put(f"way/{n}", b"put"),
        ]
        for call in calls:
            try:
                call()
            except OSError:
                pass  # the link, or nothing, had the name just then
    value(held, "stop = True; thread.join()")
    assert seen == {b"mine"}
    assert Path("/etc/passwd").read_bytes() == before
    assert not [name for name in os.listdir("/etc") if name.isdigit()]


KINDS = {
    "fifo": ("import os; os.mkfifo('fifo')", OSError),
    "socket": ("import socket; socket.socket(socket.AF_UNIX).bind('socket')", OSError),
    "device": ("import os; os.mknod('device', 0o20600, os.makedev(1, 5))", OSError),
    "proc": ("import os; os.symlink('/proc/self/root', 'proc')", OSError),
    "proc/etc/passwd": ("import os; os.symlink('/proc/self/root', 'proc')", NotADirectoryError),
    "cwd/x": ("import os; os.symlink('/proc/self/cwd', 'cwd')", NotADirectoryError),
}


@pytest.mark.parametrize("path", KINDS)
def test_nothing_but_a_regular_file_is_opened_or_packed(held: Session, path: str) -> None:
    code, kind = KINDS[path]
    if not held.run(code).ok:
        pytest.skip("code of this tier cannot make it")
    with pytest.raises(kind, match=path):
        held.files.open(path)
    with pytest.raises(kind):
        held.files.get(path, to=io.BytesIO())
    assert unpacked(held.files.archive()) == {}


def test_a_workspace_of_many_entries_and_a_deep_one(held: Session) -> None:
    value(
        held,
        "import os\nfor n in range(3000): open(f'{n}', 'w').close()\n"
        "os.makedirs('/'.join('d' * 60)); open('/'.join('d' * 60) + '/f', 'w').write('deep')",
    )
    found = unpacked(held.files.archive())
    assert len(found) == 3061
    assert found["/".join("d" * 60) + "/f"] == b"deep"


def test_files_say_that_a_cell_runs(held: Session) -> None:
    started = threading.Event()
    cell = threading.Thread(
        target=lambda: held.run(
            "print(flush=True)\nwhile True: pass", on_output=lambda *_: started.set()
        )
    )
    cell.start()
    assert started.wait(60)
    for call in (held.files.archive, lambda: held.files.open("x")):
        with pytest.raises(SessionBusy):
            call()
    held.interrupt()
    cell.join()


async def test_an_archive_comes_in_pieces_on_an_event_loop(tmp_path: Path) -> None:
    async with AsyncSandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        files = session.files
        await files.put("a/large", io.BytesIO(LARGE))
        assert await files.get("a/large", to=tmp_path / "out") == len(LARGE)
        packed = await files.archive()
        async with aclosing(files.archive_chunks("a")) as chunks:
            pieces = [chunk async for chunk in chunks]
        assert len(pieces) > 2
        assert unpacked(packed) == {"a": None, "a/large": LARGE}
        assert unpacked(b"".join(pieces)) == {"a/large": LARGE}
        # A transfer that is abandoned leaves the session free, and a running one occupies it.
        async with aclosing(files.archive_chunks()) as chunks:
            await anext(chunks)
            with pytest.raises(SessionBusy):
                await session.run("1")
        assert (await session.run("1")).ok
        with pytest.raises(NotADirectoryError):
            async with aclosing(files.archive_chunks("a/large")) as chunks:
                await anext(chunks)
        (opened,) = [await files.open("a/large")]
        with opened:
            assert opened.read(0, 10) == b"0123456789"


def test_an_archive_whose_session_is_closed_is_an_error(small: Sandbox) -> None:
    class Closing(io.BytesIO):
        def write(self, data: Any) -> int:
            session.close()
            return super().write(data)

    with small.session() as session:
        for name in "ab":
            session.files.put(name, LARGE)
        with pytest.raises(Exception) as ended:
            session.files.archive(to=Closing())
    assert type(ended.value).__name__ == "SessionClosed"

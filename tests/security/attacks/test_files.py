"""Hostile sessions gain nothing from the host's access to their files."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from errno import EFBIG, EIO
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import Finished, Limits, Sandbox, SandboxError, Session
from tests.internals import init_pid, session_links, worker_pid
from tests.waiting import PATIENCE, eventually

TIERS = ("jailed", "confined")
SECRET = "of-the-host-and-not-of-a-session"
LIMITS = Limits(timeout=PATIENCE, workspace="64MiB", file_size="1024GiB")


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    tier = request.param
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that everybody on the host may read and write."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    for path in (file, tmp_path, *tmp_path.parents[:-2]):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o005)
    file.chmod(0o666)
    return file


def do(session: Session, code: str) -> None:
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome


@pytest.mark.parametrize(
    "target", ["{secret}", "/proc/self/environ", "/proc/1/root", "/proc/self/fd/0", "/dev/zero"]
)
def test_a_symbolic_link_is_not_followed(session: Session, secret: Path, target: str) -> None:
    target = target.format(secret=secret)
    do(session, f"import os\nos.symlink({target!r}, 'a')\nos.symlink({str(secret.parent)!r}, 'd')")
    for path in ("a", "d/secret", "a/secret"):
        with pytest.raises(OSError, match=path):
            session.files.get(path)
        with pytest.raises(OSError, match=path):
            session.files.put(path, b"overwritten")
    with pytest.raises(OSError, match="d"):
        session.files.list("d")
    assert [(file.path, file.kind) for file in session.files.list()] == [
        ("a", "symlink"),
        ("d", "symlink"),
    ]
    assert secret.read_text() == SECRET
    assert os.listdir(secret.parent) == ["secret"]


# In a separate process, which outlives the cell. Each name alternates between the right file and an
# escape; `exchange` leaves no moment without a file.
_FLIP = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def exchange(one, other):
    assert libc.renameat2(-100, one.encode(), -100, other.encode(), 2) == 0, ctypes.get_errno()
os.mkdir('dir')
os.symlink({outside!r}, 'dir-link')
os.symlink({secret!r}, 'file-link')
for name in ('file', 'dir/secret'):
    with open(name, 'w') as file:
        file.write('of the session')
if os.fork() == 0:
    for fd in range(3):
        os.close(fd)
    while True:
        exchange('file', 'file-link')
        exchange('dir', 'dir-link')
"""


def test_names_changed_during_a_file_call_lead_nowhere(session: Session, secret: Path) -> None:
    before = secret.stat()
    do(session, _FLIP.format(secret=str(secret), outside=str(secret.parent)))
    reads, refusals, turn = set(), set(), 0
    until = time.monotonic() + PATIENCE
    # The race was on only if each side has won some.
    while turn < 60 or (not (reads and refusals) and time.monotonic() < until):
        turn += 1
        for path in ("file", "dir/secret"):
            try:
                reads.add(session.files.get(path))
                session.files.put(path, f"of the session, {turn}")
                session.files.put(f"{path}-new", b"of the session")
            except OSError as error:
                refusals.add(type(error))
        for file in session.files.list():
            assert file.path.split("/")[0] in {"file", "dir", "file-link", "dir-link", "file-new"}
    assert reads
    assert refusals
    assert all(content.startswith(b"of the session") for content in reads)
    assert secret.read_text() == SECRET
    assert secret.stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(secret.parent) == ["secret"]


def test_a_workspace_that_changes_during_a_put_and_a_list_breaks_neither(session: Session) -> None:
    do(
        session,
        "import os\nif os.fork() == 0:\n"
        "    for fd in range(3): os.close(fd)\n"
        "    while True:\n"
        "        try:\n"
        "            os.makedirs('a/b/c'); os.rename('a', 'x')\n"
        "        except OSError: pass\n"
        "        for path in ('x/b/c', 'x/b', 'x', 'a/b/c', 'a/b', 'a'):\n"
        "            try: os.rmdir(path)\n"
        "            except OSError: pass\n"
        "            try: [os.unlink(f'{path}/{n}') for n in os.listdir(path)]\n"
        "            except OSError: pass",
    )
    ends: list[str] = []

    def put_and_get() -> bool:
        try:
            session.files.put("a/b/c/file", b"x" * 10_000)
            assert session.files.get("a/b/c/file") == b"x" * 10_000
            ends.append("whole")
        except OSError:
            ends.append("refused")
        for file in session.files.list():
            assert file.path[0] in "ax"
        return len(ends) >= 50 and "refused" in ends

    eventually(put_and_get)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_a_special_file_does_not_block_the_host(
    request: pytest.FixtureRequest, tmp_path: Path, tier: str, kind: str
) -> None:
    """The code of a session cannot make any of these; should it find a way, it gains nothing."""
    shown = tmp_path / "shown"
    shown.mkdir()
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    mounts = {"/workspace/odd": str(shown)} if tier == "jailed" else {}
    with Sandbox(isolation=tier, python=python, mounts=mounts) as sandbox:  # type: ignore[arg-type]
        with sandbox.session() as session:
            if tier != "jailed":
                shown = Path(session_links(session).folder) / "workspace" / "odd"
                shown.mkdir()
            for each in (tmp_path, tmp_path.parent, tmp_path.parent.parent, shown):
                each.chmod(each.stat().st_mode | 0o007)
            _make(kind, shown / "it")
            for call in (
                lambda: session.files.get("odd/it"),
                lambda: session.files.put("odd/it", ""),
            ):
                with pytest.raises(OSError, match="Not a regular file: 'odd/it'"):
                    call()
            assert ("odd/it", "other") in {(f.path, f.kind) for f in session.files.list()}


def _make(kind: str, path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        except PermissionError as error:
            pytest.skip(f"no device can be made here: {error}")
    path.chmod(0o666)


def test_a_sparse_file_is_cheap_for_the_host(session: Session) -> None:
    do(session, "import os\nopen('holes', 'w').close()\nos.truncate('holes', 1 << 40)")
    resident = psutil.Process().memory_info().rss
    with pytest.raises(OSError, match="1,099,511,627,776 bytes") as refused:
        session.files.get("holes")
    assert refused.value.errno == EFBIG
    assert psutil.Process().memory_info().rss - resident < 32 << 20
    assert session.files.list()[0].size == 1 << 40
    session.files.put("holes", b"x")
    assert session.files.get("holes") == b"x"


def test_a_file_that_grows_while_it_is_read_is_bounded(session: Session) -> None:
    do(
        session,
        "import os\nopen('log', 'w').close()\nif os.fork() == 0:\n"
        "    for fd in range(3): os.close(fd)\n"
        "    while True:\n"
        "        with open('log', 'wb') as file:\n"
        "            for _ in range(200): file.write(b'x' * 4096); file.flush()",
    )
    sizes: set[int] = set()
    refusals: set[int | None] = set()

    def get() -> bool:
        try:
            sizes.add(len(session.files.get("log", limit=100_000)))
        except OSError as error:
            refusals.add(error.errno)
        return len(sizes) > 5

    eventually(get)
    assert max(sizes) <= 100_000
    # A file that grew meanwhile is more, and one that was emptied meanwhile is less.
    assert refusals <= {EFBIG, EIO}


def test_a_hard_link_to_a_file_of_the_host_cannot_be_made(session: Session, secret: Path) -> None:
    outcome = session.run(f"import os\nos.link({str(secret)!r}, 'mine')")
    assert not outcome.ok
    with pytest.raises(FileNotFoundError):
        session.files.get("mine")


def test_a_put_does_not_write_through_a_hard_link(session: Session) -> None:
    do(session, "import os\nopen('one', 'w').write('x')\nos.link('one', 'two')")
    session.files.put("one", b"changed")
    assert (session.files.get("one"), session.files.get("two")) == (b"changed", b"x")


def test_a_list_of_as_much_as_a_session_may_have_is_bounded(session: Session) -> None:
    """A session has up to 65,536 entries: more do not fit on the mount, or end the worker."""
    each = 15_000 if session.isolation.tier == "jailed" else 3_000  # a disk takes its time
    do(
        session,
        "import os\nfor d in range(4):\n    os.mkdir(f'd{d}')\n    open(f'd{d}/0', 'w').close()\n"
        f"    for n in range(1, {each}): os.link(f'd{{d}}/0', f'd{{d}}/{{n}}')",
    )
    files = session.files.list()
    assert len(files) == 10_000
    assert not files.complete
    assert len(session.files.list("d0", limit=5)) == 5
    everything = session.files.list(limit=100_000)
    assert len(everything) == 4 * each + 4
    assert everything.complete
    assert session.run("1 + 1").value == "2"


def test_a_directory_tree_that_is_too_deep_is_truncated(session: Session) -> None:
    if session.isolation.tier != "jailed":
        pytest.skip("a worker that makes one is ended, and its directory emptied")
    do(
        session,
        "import os\ntop = os.getcwd()\nfor n in range(3000):\n"
        "    os.mkdir('d' * 100)\n    os.chdir('d' * 100)\nos.chdir(top)",
    )
    files = session.files.list()
    assert 30 <= len(files) <= 64
    assert not files.complete
    assert max(len(file.path) for file in files) < 4096
    do(session, "for n in range(70):\n    os.mkdir('e')\n    os.chdir('e')\nos.chdir(top)")
    files = session.files.list("e")
    assert len(files) <= 64
    assert not files.complete


def _clerks(session: Session, besides: Collection[int] = ()) -> list[psutil.Process]:
    init = psutil.Process(init_pid(session))
    known = {worker_pid(session), *besides}
    return [each for each in init.children() if each.pid not in known]


def test_attacks_on_the_file_helper_cause_at_most_an_error(session: Session) -> None:
    """It signals and traces every permitted process while the host works on its files."""
    do(
        session,
        "import ctypes, os, signal\nlibc = ctypes.CDLL(None)\n"
        "mine, worker = os.getpid(), os.getpid()\n"
        "if os.fork() == 0:\n"
        "    for fd in range(3): os.close(fd)\n"
        "    mine = os.getpid()\n"
        "    said = set()\n"
        "    while True:\n"
        "        for pid in range(2, mine + 200):\n"
        "            if pid in (mine, worker): continue\n"
        "            libc.ptrace(16, pid, 0, 0)\n"
        "            try: said.add(os.kill(pid, signal.SIGKILL))\n"
        "            except OSError as error: said.add(error.errno)\n"
        "            try: said.add(open(f'/proc/{pid}/mem', 'r+b'))\n"
        "            except OSError as error: said.add(error.errno)\n"
        "        if said: open('round', 'a').write('x')",
    )
    eventually(lambda: session.run("os.path.exists('round')").value == "True")
    # An ordinary user's code has the uid of the file helper, and kernels before 6.12 have no signal
    # scopes.
    tolerated = () if os.geteuid() == 0 else (SandboxError,)
    for turn in range(30):
        with suppress(*tolerated):
            session.files.put("file", f"{turn}")
            assert session.files.get("file") == f"{turn}".encode()
    rounds = "os.path.getsize('round')"
    done = int(session.run(rounds).value)
    eventually(lambda: int(session.run(rounds).value) > done)
    assert session.run("1 + 1").value == "2"


def test_a_worker_that_dies_during_a_file_call_loses_no_file(session: Session) -> None:
    for turn in range(20):
        session.run("pass")  # which may be how the host learns of the end before
        os.kill(worker_pid(session), signal.SIGKILL)
        session.files.put("file", b"x" * 100_000 + bytes([turn]))
        assert session.files.get("file")[-1] == turn
        assert [file.path for file in session.files.list()] == ["file"]


def test_no_process_and_no_descriptor_is_left(session: Session) -> None:
    do(session, "pass")
    session.files.put("file", b"x")

    def use() -> None:
        session.files.put("a/b/file", b"x")
        session.files.get("a/b/file")
        session.files.list()
        for path in ("none", "a"):
            with pytest.raises(OSError, match=path):
                session.files.get(path)

    use()
    before = len(os.listdir("/proc/self/fd"))
    # A snapshot of the worker, and the helper of workspace snapshots; their end may take a moment.
    eventually(lambda: len(_clerks(session)) <= 3)
    waiting = [each.pid for each in _clerks(session)]
    for _ in range(20):
        use()
    # A thread that looks at the sessions opens some for a moment.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
    eventually(lambda: not _clerks(session, waiting))


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_a_mount_of_a_special_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    _make(kind, path)
    link = tmp_path / "link"
    link.symlink_to(path)
    for shown in (path, link):
        with pytest.raises(ValueError, match=f"mounts: '{path}' is neither a file nor"):
            Sandbox(mounts={"/data": str(shown)})


def test_a_mount_is_resolved_when_the_sandbox_is_made(tmp_path: Path) -> None:
    """A symbolic link in the path that is changed later cannot show other files to sessions."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        (tmp_path / name).chmod(0o755)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o005)
    link = tmp_path / "link"
    link.symlink_to("first")
    with Sandbox(mounts={"/data": str(link)}) as sandbox:
        link.unlink()
        link.symlink_to("second")
        with sandbox.session() as session:
            assert session.run("open('/data/file').read()").value == "'first'"
            # A link in what is shown leads through the session's view.
            (tmp_path / "first" / "out").symlink_to(tmp_path / "second" / "file")
            assert session.run("open('/data/out')").error is not None


_AS_A_USER = """
import json, os
from repl_sandbox import Limits, Sandbox
found = {{}}
with Sandbox(isolation={tier!r}, limits=Limits(timeout=60, workspace="4MiB")) as sandbox:
    with sandbox.session() as session:
        session.files.put("a/b", "x")
        session.run("import os; os.symlink('/etc/passwd', 'link'); os.chmod('a/b', 0)")
        for name, call in {{
            "closed": lambda: session.files.get("a/b"),
            "link": lambda: session.files.get("link"),
            "full": lambda: session.files.put("full", b"x" * (5 << 20)),
        }}.items():
            try:
                call()
            except OSError as error:
                found[name] = error.errno
        session.run("os.chmod('a/b', 0o600); open('a/b', 'a').write('y'); os._exit(1)")
        found["content"] = session.files.get("a/b").decode()
        found["list"] = [file.path for file in session.files.list()]
print(json.dumps(found))
"""


@pytest.mark.parametrize("tier", TIERS)
def test_an_ordinary_users_sessions_have_files_too(user: Callable[[str], Any], tier: str) -> None:
    assert user(_AS_A_USER.format(tier=tier)) == {
        "closed": 13,
        "link": 40,
        "full": 28,
        "content": "xy",
        "list": ["a", "a/b", "link"],
    }

"""Objects with a lost descriptor raise errors after a takeover, and harm no file of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from repl_sandbox import Limits, Sandbox, SandboxError, Session


@contextmanager
def crashed(session: Session) -> Iterator[tuple[Session, tuple[str, ...]]]:
    outcome = session.run("import os\nos._exit(1)")
    assert outcome.state == "rolled_back", outcome
    yield session, outcome.lost


@contextmanager
def rolled_back(session: Session) -> Iterator[tuple[Session, tuple[str, ...]]]:
    session.run("later = 1")
    yield session, session.rollback()


@contextmanager
def branched(session: Session) -> Iterator[tuple[Session, tuple[str, ...]]]:
    with session.branch() as branch:
        yield branch, branch.lost


TakeOver = Callable[[Session], AbstractContextManager[tuple[Session, tuple[str, ...]]]]
TAKEOVERS: list[TakeOver] = [crashed, rolled_back, branched]

# Code that makes a resource that is lost, its use that fails, and the variable that holds it. A
# tier leaves out resources that it forbids.
LOST = {
    "pipe": ("r, w = os.pipe()", "os.write(w, b'y')", ""),
    "pipe to read": ("r1, w1 = os.pipe()", "os.read(r1, 1)", ""),
    "Popen.stdin": (
        "p = subprocess.Popen(['cat'], stdin=-1, text=True)",
        "p.stdin.write('y'); p.stdin.flush()",
        "p",
    ),
    "Popen with text that was not flushed": (
        "p1 = subprocess.Popen(['cat'], stdin=-1, text=True)\np1.stdin.write('y')",
        "p1.communicate()",
        "p1",
    ),
    "Popen.stdout": (
        "p2 = {'deep': [subprocess.Popen(['cat'], stdin=-1, stdout=-1, stderr=-1)]}",
        "p2['deep'][0].communicate(b'y')",
        "p2",
    ),
    "socketpair": ("one, other = socket.socketpair()", "one.send(b'y')", "other"),
    "socket that is read": ("s2 = socket.socketpair()", "s2[0].recv(1)", "s2"),
    "file of a socket": (
        "f3 = socket.socketpair()[0].makefile('rw')",
        "f3.write('y'); f3.flush()",
        "",
    ),
    "Pipe": ("ends = multiprocessing.Pipe()", "ends[0].send(1)", "ends"),
    "Queue": ("q = multiprocessing.Queue()", "q.get()", "q"),
    "SimpleQueue": ("q1 = multiprocessing.SimpleQueue()", "q1.put(1)", "q1"),
    "epoll": ("e = select.epoll()", "e.poll(0)", "e"),
    "selector": (
        "s3 = selectors.DefaultSelector(), socket.socketpair()\ns3[0].register(s3[1][0], 1)",
        "s3[0].select(0)",
        "s3",
    ),
    "poll": (
        "s4 = select.poll(), socket.socketpair()\ns4[0].register(s4[1][0])",
        "assert s4[0].poll(0)[0][1] == select.POLLNVAL\ns4[1][0].recv(1)",
        "s4",
    ),
    "event loop": (
        "loop = asyncio.new_event_loop()",
        "loop.run_until_complete(asyncio.sleep(0))",
        "loop",
    ),
    "eventfd": ("number = os.eventfd(0)", "os.eventfd_write(number, 1)", ""),
    "terminal": ("terminal = os.openpty()", "os.write(terminal[0], b'y')", ""),
    "by the name of the descriptor": (
        "fds = os.pipe()",
        "open(f'/dev/fd/{fds[1]}', 'w').write('y')",
        "",
    ),
}
IMPORTS = (
    "import asyncio, gc, multiprocessing, os, select, selectors, socket, subprocess\n"
    "await asyncio.sleep(0)"
)
# For each file its content, if that differs from the written one.
CHECK = """
for file in files: file.write('x'); file.flush()
wrong = {i: text for i in range(len(files)) if (text := open(f'f{i}').read()) != 'x'}
wrong
"""


def made(session: Session) -> dict[str, tuple[str, str, str]]:
    """Make the objects of `LOST` that the session may have; return their rows."""
    session.run(IMPORTS)
    return {what: row for what, row in LOST.items() if session.run(row[0]).ok}


@pytest.mark.parametrize("take_over", TAKEOVERS)
def test_a_lost_descriptor_fails_and_harms_no_file(
    recovering: Sandbox, take_over: TakeOver
) -> None:
    with recovering.session(limits=Limits(timeout=60)) as original:
        kinds = made(original)
        assert len(kinds) > 10
        with take_over(original) as (session, _):
            session.run("files = [open(f'f{i}', 'w') for i in range(10)]")
            session.run("await asyncio.sleep(0)\ngc.collect()")
            for what, (_, use, _) in kinds.items():
                error = session.run(use).error
                assert error is not None and "Error" in error.type, what
            held = {row[2] for row in kinds.values()} - {""}
            session.run(f"for name in {held!r}: del globals()[name]\ngc.collect()")
            assert session.run(CHECK).value == "{}"


@pytest.mark.parametrize("what", [what for what, row in LOST.items() if row[2]])
def test_the_variable_that_holds_what_is_lost_is_named(copied: Session, what: str) -> None:
    make, _, name = LOST[what]
    copied.run(IMPORTS)
    if not copied.run(make).ok:
        pytest.skip("not available in this tier")
    with crashed(copied) as (_, lost):
        assert any(each.endswith(f"which {name!a} holds") for each in lost), lost


@pytest.mark.parametrize(
    "holder",
    [
        "def holder(given=socket.socketpair()): pass",
        "def holder(*, given=socket.socketpair()): pass",
        "holder = (lambda pair: lambda: pair)(socket.socketpair())",
        "def holder(): pass\nholder.pair = socket.socketpair()",
        "class holder: pair = socket.socketpair()",
        "class holder:\n    def method(self, given=socket.socketpair()): pass",
    ],
)
def test_functions_and_classes_of_cells_hold_descriptors_too(copied: Session, holder: str) -> None:
    assert copied.run(f"import socket\n{holder}").ok
    with crashed(copied) as (_, lost):
        assert [each.partition(", ")[2] for each in lost] == ["a socket, which 'holder' holds"] * 2


def test_each_variable_that_holds_a_lost_descriptor_is_named(copied: Session) -> None:
    code = (
        "import asyncio, os, select, socket, subprocess\nreading, writing = os.pipe()\n"
        "own = await asyncio.sleep(0, asyncio.get_running_loop())\n"
        "class Has: pass\nhas = Has(); has.it = [socket.socketpair()[0]]\n"
        "child = subprocess.Popen(['true'], stdin=-1)\nchild.wait()\nwatch = select.epoll()"
    )
    assert copied.run(code).ok
    with crashed(copied) as (session, lost):
        numbers = [
            session.run(code).value
            for code in ("writing", "has.it[0].fileno()", "child.stdin.fileno()", "watch.fileno()")
        ]
        kinds = [
            "a pipe",
            "a socket, which 'has' holds",
            "a pipe, which 'child' holds",
            "of the kernel, which 'watch' holds",
        ]
        for number, kind in zip(numbers, kinds, strict=True):
            assert f"descriptor {number}, {kind}" in lost
        assert lost[-1].startswith("the event loop that 'own' holds")
        assert len(lost) == 6


@pytest.mark.parametrize("take_over", TAKEOVERS)
def test_a_loop_of_the_session_is_replaced(copied: Session, take_over: TakeOver) -> None:
    copied.run(IMPORTS)
    copied.run(
        "import signal\nmade, heard = [], asyncio.Event()\nasync def note(): made.append(1)\n"
        "loop = await asyncio.sleep(0, asyncio.get_running_loop())\n"
        "loop.add_signal_handler(signal.SIGTERM, heard.set)\ndel loop"
    )
    with take_over(copied) as (session, lost):
        assert lost == ()
        # As before the recovery: the loop exists, and its callbacks run with the next await.
        code = "task = asyncio.get_event_loop().create_task(note())"
        assert session.run(code).ok
        assert session.run("await asyncio.sleep(0)\nmade").value == "[1]"
        code = "os.kill(os.getpid(), signal.SIGTERM)\nawait heard.wait()"
        assert session.run(code).value == "True"
        assert session.run("(await asyncio.to_thread(lambda: 3))").value == "3"
        assert session.run("asyncio.run(asyncio.sleep(0, 4))").value == "4"


# ── what comes back ───────────────────────────────────────────────────────────────────────────


KEPT = {
    "a duplicate of standard output": ("d = os.dup(1)", "os.write(d, b'out')", "out"),
    "a path": (
        "open('p', 'w').close()\nd = os.open('p', os.O_PATH)",
        "print(os.fstat(d).st_ino == os.stat('p').st_ino)",
        "True",
    ),
    "a directory": (
        "os.mkdir('sub')\nd = os.open('sub', 0)",
        "os.close(os.open('in', os.O_CREAT, dir_fd=d))\nprint(os.listdir('sub'))",
        "['in']",
    ),
    "a directory that is gone": (
        "os.mkdir('sub')\nd = os.open('sub', 0)\nos.rmdir('sub')",
        "print(os.listdir(d))",
        "[]",
    ),
    "a database": (
        "import sqlite3\nd = sqlite3.connect('db')\nd.execute('create table t(a)')\nd.commit()",
        "d.execute('insert into t values (1)')\nd.commit()\nprint(*d.execute('select * from t'))",
        "(1,)",
    ),
    "a signal's wakeup": (
        "import signal\nd = os.pipe2(os.O_NONBLOCK)\nheard = []\n"
        "signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))\nsignal.set_wakeup_fd(d[1])",
        "os.kill(os.getpid(), signal.SIGUSR2)\nprint(heard)",
        "[1]",
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_descriptor_without_a_peer_still_works(copied: Session, what: str) -> None:
    make, use, shown = KEPT[what]
    assert copied.run(f"import os\n{make}").ok
    for _ in range(2):  # in tier "confined" less is known of what the second has
        with crashed(copied) as (session, _):
            outcome = session.run(use)
            assert (outcome.stdout.strip(), outcome.stderr) == (shown, "")
            session.rollback()


def test_a_file_that_another_has_taken_the_name_of_is_lost(copied: Session) -> None:
    """Outside the workspace nothing is put back: the name leads to what the lost cell has made."""
    copied.run("import os, tempfile\nfolder = tempfile.mkdtemp()\npath = folder + '/f'")
    if copied.run("folder.startswith(os.environ['HOME'])").value == "True":
        pytest.skip("here all that code may write to is the workspace")
    copied.run("file = open(path, 'w')")
    outcome = copied.run("os.rename(path, path + '1')\nopen(path, 'w').close()\nos._exit(1)")
    (name,) = outcome.lost
    assert "another file has that name, which 'file' holds" in name
    error = copied.run("file.write('spoilt'); file.flush()").error
    assert error is not None and error.type == "OSError"
    assert copied.run("os.path.getsize(path), os.path.getsize(path + '1')").value == "(0, 0)"


@pytest.mark.parametrize(
    "replaced",
    [
        "os.open = os.dup2 = None",
        "os.sysconf = os.listdir = None",
        "asyncio.all_tasks = asyncio.set_event_loop = asyncio.SelectorEventLoop = None",
    ],
)
def test_replaced_functions_of_modules_are_not_called(copied: Session, replaced: str) -> None:
    copied.run("import asyncio, os, ctypes\nfile = open('f', 'w')\nawait asyncio.sleep(0)")
    copied.run(replaced)
    assert copied.run("ctypes.string_at(0)").state == "rolled_back"
    assert copied.run("print(file.name, file.write('x'), file.flush())").stdout == "f 1 None\n"


# ── again, and where there is no room ─────────────────────────────────────────────────────────


def test_placeholders_stay_however_often_it_dies_and_are_named_once(copied: Session) -> None:
    # The highest number that code may have.
    copied.run(
        "import os, resource\nends = os.pipe()\n"
        "top = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1\nos.dup2(ends[1], top)"
    )
    with crashed(copied) as (_, lost):
        assert len(lost) == 3
    for number in range(4):
        copied.run(f"n = {number}")
        with crashed(copied) as (_, lost):
            assert lost == ()
        assert copied.run("[open(f'f{i}', 'w').fileno() in (*ends, top) for i in range(9)]").ok
        for end in ("ends[0]", "ends[1]", "top"):
            error = copied.run(f"os.write({end}, b'y')").error
            assert error is not None and "Bad file descriptor" in error.message
    # The code may close one, and then reuse its number.
    copied.run("os.close(top); os.dup2(os.open('f', os.O_CREAT | os.O_RDWR), top)")
    copied.run("os.write(top, b'one')")
    with crashed(copied) as (_, lost):
        assert lost == ()
    assert copied.run("os.write(top, b'two'); open('f').read()").value == "'onetwo'"


def test_no_garbage_is_collected_before_all_numbers_are_kept(copied: Session) -> None:
    """Otherwise garbage could close a descriptor that just got its number."""
    copied.run(
        "import gc, os, stat\nends, worker, found = os.pipe(), os.getpid(), []\n"
        "def look(phase, info):\n"
        "    if os.getpid() != worker:\n"
        "        try: found.append(stat.S_ISLNK(os.fstat(ends[0]).st_mode))\n"
        "        except OSError: found.append(False)\n"
        "gc.callbacks.append(look)\ngc.set_threshold(1)"
    )
    with crashed(copied) as (session, _):
        assert session.run("gc.collect()\nlen(found) > 1 and all(found)").value == "True"
        assert session.run("gc.isenabled()").value == "True"


FULL = "import os\nends = [os.pipe() for _ in range(25)]"


def test_a_quarter_of_the_numbers_is_not_kept_for_what_is_lost(recovering: Sandbox) -> None:
    """`recovering` has a limit of 64."""
    with recovering.session() as session:
        session.run(FULL)
        outcome = session.run("os._exit(1)")
        assert outcome.state == "restarted"
        assert any("Limits.open_files" in name for name in outcome.lost)
        assert session.run("'ends' in globals()").value == "False"
        session.run("import os")
        assert session.run("os._exit(1)").lost == ()


def test_with_all_descriptors_in_use_nothing_is_lost(copied: Session) -> None:
    copied.run(
        "import os\nfiles = []\ntry:\n    while True: files.append(open('f', 'a'))\n"
        "except OSError: pass\nends = os.dup2(files.pop().fileno(), files[-1].fileno() + 1)"
    )
    for _ in range(2):
        with crashed(copied) as (_, lost):
            assert lost == ()
        code = "for f in files: f.write('x'); f.flush()\nlen(files) == os.path.getsize('f')"
        assert copied.run(code).value == "True"
        assert copied.run("os.truncate('f', 0)").ok
    copied.run("del f, files")
    assert copied.run("6 * 7").state == "kept"


def test_a_snapshot_without_copies_of_its_descriptors_is_not_used(
    copied: Session,
) -> None:
    copied.run("import os\nx = 1")
    copied.run(f"{FULL}\nx = 2")
    with pytest.raises(SandboxError, match="could not be branched"):
        copied.branch()
    assert copied.run("x").value == "2"
    outcome = copied.run("os._exit(1)")
    assert (outcome.state, copied.get("x")) == ("rolled_back", 1)
    assert any("Limits.open_files" in name for name in outcome.lost)
    copied.run(f"{FULL}\nx = 3")
    copied.run("for end in ends: os.close(end[0])")
    outcome = copied.run("os._exit(1)")
    assert (outcome.state, copied.get("x")) == ("rolled_back", 3)
    assert outcome.lost[-1] == "5 more descriptors"

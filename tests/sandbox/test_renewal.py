"""A waiting copy that is brought up to date stands for the state as one that was just forked."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repl_sandbox import Killed, Sandbox, Session
from repl_sandbox.jail import libc, mounts
from tests.sandbox.conftest import PATIENT

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_PAGEMAP_SCAN = 0xC0606610
_USER_MODE_ONLY = 1


def _kernel_tells_what_was_written() -> bool:
    """Whether it has both calls: of Linux 6.7, and what a container may be refused."""
    number = _USERFAULTFD.get(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or (fd := libc.syscall(number, _USER_MODE_ONLY)) < 0:
        return False
    os.close(fd)
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    # struct pm_scan_arg: its size, and nothing that is asked for.
    asked = (ctypes.c_uint64 * 12)(96)
    try:
        return bool(libc.ioctl(pagemap, ctypes.c_ulong(_PAGEMAP_SCAN), asked) == 0)
    finally:
        os.close(pagemap)


pytestmark = pytest.mark.skipif(
    not _kernel_tells_what_was_written(), reason="the kernel does not tell what was written"
)

# Seconds between two cells of a session that need not hurry: `worker.cells` says 0.1.
_LEISURE = 0.2
# So many cells until the copies of a session are renewed without a close look, and one more.
_CELLS = 16
# Within so many a signal comes in a moment that is a thousandth of a step.
_MANY = 20_000
PROCESSES = "import os\nsorted(int(name) for name in os.listdir('/proc') if name.isdecimal())"


@pytest.fixture(scope="module", params=[0, 1, 3])
def jailed(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", limits=PATIENT, history=request.param) as sandbox:
        yield sandbox


@pytest.fixture
def session(jailed: Sandbox) -> Iterator[Session]:
    with jailed.session() as session:
        session.run("import ctypes, mmap, os, resource, signal, sys")
        for number in range(_CELLS):
            session.run(f"x = {number}")
        yield session


def die(session: Session) -> Killed:
    outcome = session.run("import os; x = 'lost'; os._exit(1)")
    assert isinstance(outcome, Killed)
    assert outcome.state == "rolled_back"
    return outcome


def test_it_is_the_same_process_after_each_cell(session: Session) -> None:
    # Until nothing more is mapped, and all states that are kept have such a copy.
    for _ in range(30):
        before = session.run(PROCESSES).value
        session.run("y = [x] * 10")
        if session.run(PROCESSES).value == before:
            return
    pytest.fail("each copy was another fork")


def test_memory_that_the_kernel_may_take_back_is_left_out(jailed: Sandbox) -> None:
    """As that of glibc's random numbers, 2.41; userfaultfd refuses it."""
    with jailed.session() as session:
        session.run("import mmap, os")
        droppable = session.run("held = mmap.mmap(-1, 1 << 14, flags=mmap.MAP_ANONYMOUS | 8)")
        if droppable.error is not None:
            pytest.skip("there is no MAP_DROPPABLE before Linux 6.11")
        for number in range(_CELLS):
            session.run(f"x = {number}; held[0] = 1")
        test_it_is_the_same_process_after_each_cell(session)
        die(session)
        assert session.run("x").value == str(_CELLS - 1)


def test_a_session_at_leisure_has_no_file_for_its_copies(jailed: Sandbox) -> None:
    look = "import os; held = 1\nlen(os.listdir('/proc/self/fd'))"
    with jailed.session() as session:
        held = []
        for _ in range(_CELLS // 2):
            held.append(session.run(look).value)
            time.sleep(_LEISURE)
        assert held == held[:1] * len(held)
        die(session)
        assert session.get("held") == 1


def test_sessions_leave_no_garbage_in_their_template(jailed: Sandbox) -> None:
    """It does not collect; the first collection of a session then writes to all of its memory."""
    look = "import gc; gc.collect(); sum(each['collected'] for each in gc.get_stats())"

    def collected(_: int) -> int:
        with jailed.session() as session:
            return int(session.run(look).value or "")

    # At once, so that what was made for one does not serve for the next.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(collected, range(16)))
        found = [list(pool.map(collected, range(16)))[-1] for _ in range(5)]
    assert found[-1] == found[0]


def test_what_is_kept_lies_in_large_folios_where_the_kernel_has_them(jailed: Sandbox) -> None:
    with jailed.session() as session:
        mounted = session.run("print(open('/proc/self/mountinfo').read())").stdout
    (private,) = (line for line in mounted.splitlines() if " /dev/shm " in line)
    has_them = Path("/sys/kernel/mm/transparent_hugepage").exists()
    assert ("huge=within_size" in private) == has_them


def test_a_kernel_without_large_folios_is_not_asked_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mount(*_: object) -> None:
        raise OSError(errno.EINVAL, "mount /dev/shm")

    monkeypatch.setattr(libc, "mount", mount)
    mounts.large_folios.cache_clear()
    try:
        options = dict(mounts.private_options(1 << 20, 1000))
    finally:
        mounts.large_folios.cache_clear()
    assert "huge" not in options["/dev/shm"]


def test_it_has_what_the_last_cell_left(session: Session) -> None:
    for number in range(5):
        session.run(f"x = {{'number': {number}, 'all': list(range({number}))}}")
    die(session)
    assert session.get("x") == {"number": 4, "all": [0, 1, 2, 3]}
    session.run("x = 5")
    die(session)
    assert session.get("x") == 5


@pytest.mark.parametrize("history", [1, 3])
def test_a_state_before_has_what_that_cell_left(history: int) -> None:
    with Sandbox(isolation="jailed", limits=PATIENT, history=history) as sandbox:
        with sandbox.session() as session:
            for number in range(_CELLS):
                session.run(f"x = {number}")
            session.rollback(history)
            assert session.get("x") == _CELLS - 1 - history
            session.run("x += 10")
            die(session)
            assert session.get("x") == _CELLS + 9 - history


@pytest.mark.parametrize("history", [0, 8])
def test_nothing_is_said_to_be_lost(history: int) -> None:
    with Sandbox(isolation="jailed", limits=PATIENT, history=history) as sandbox:
        with sandbox.session() as session:
            for number in range(_CELLS):
                session.run(f"x = {number}")
            assert die(session).lost == ()
            assert session.get("x") == _CELLS - 1


# What a cell does to a namespace: to small objects, to large ones, to none.
_OPERATIONS = (
    "data[{n} % 40] = list(range({n}))",
    "data.pop({n} % 40, None)",
    "text = str({n}) * {n}",
    "table = bytearray({n} * 4096); table[{n}] = 7",
    "table[{n} % max(len(table), 1):] = b'!' * {n}",
    "def f(a={n}): return a + {n}",
    "numbers = sorted(numbers + [{n}])[-50:]",
    "objects = [object() for _ in range({n} * 40)]; held = len(objects)",
    "del objects[len(objects) // 2:]",
    "import json; text = json.dumps([list(data), numbers])",
    "exec('g_{n} = {n}'); text += str(g_{n})",
    "1 / 0",
    "None",
)
_LOOK = "(data, text, bytes(table), f(), numbers, len(objects))"


@pytest.mark.parametrize("number", range(4))
def test_it_is_as_if_nothing_had_died(jailed: Sandbox, number: int) -> None:
    choice = random.Random(number)
    begin = "data, text, table, numbers, objects = {}, '', bytearray(), [], []\ndef f(): return 0"
    with jailed.session() as dying, jailed.session() as living:
        for session in (dying, living):
            session.run(begin)
        for _ in range(60):
            code = choice.choice(_OPERATIONS).format(n=choice.randrange(1, 400))
            for session in (dying, living):
                session.run(code)
            if choice.random() < 0.1:
                die(dying)
                assert dying.run(_LOOK).value == living.run(_LOOK).value
        assert dying.run(_LOOK).value == living.run(_LOOK).value


@pytest.mark.parametrize("size", [16 << 10, 8 << 20], ids=["pages", "tables"])
def test_memory_that_was_given_back_is_empty(session: Session, size: int) -> None:
    session.run(f"m = mmap.mmap(-1, {size}, mmap.MAP_PRIVATE)\nm[:] = b'x' * {size}")
    for _ in range(_CELLS):
        session.run("m[0] = 1")
    session.run("m.madvise(mmap.MADV_DONTNEED)")
    die(session)
    assert session.run("m[:] == bytes(len(m))").value == "True"


def test_a_mapping_in_the_place_of_another_is_seen(session: Session) -> None:
    """As large, and where that was: how much is mapped does not tell."""
    new = "m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)"
    session.run(f"{new}\nm[:] = b'x' * len(m)\nheld = m[:]")
    for number in range(_CELLS):
        session.run(f"m[0] = {number}")
    session.run(f"m.close()\n{new}\nm[5000] = 7")
    die(session)
    assert session.run("m[:] == bytes(5000) + bytes([7]) + bytes(len(m) - 5001)").value == "True"


def test_memory_in_the_place_of_what_the_kernel_may_take_back_is_kept(session: Session) -> None:
    """Nothing that was written to the one is in a copy, all that is written to the other is."""
    new = "m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_ANONYMOUS | {}); at = place(m)"
    session.run("place = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))")
    if session.run(f"{new.format(8)}; before = at").error is not None:
        pytest.skip("there is no MAP_DROPPABLE before Linux 6.11")
    for number in range(_CELLS):
        session.run(f"m[0] = {number}")
    session.run(f"m.close()\n{new.format('mmap.MAP_PRIVATE')}; m[5000] = 7")
    assert session.run("at == before").value == "True"
    for _ in range(2):
        session.run("m[9000] = 8")
    die(session)
    assert session.run("m[0], m[5000], m[9000]").value == "(0, 7, 8)"


def test_memory_that_is_mapped_after_a_look_at_what_there_is_is_kept(jailed: Sandbox) -> None:
    """A mapping that grows in its place is tracked at once, if it was before."""
    with jailed.session() as session:
        session.run(
            "import mmap, os, sys\n"
            "m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE); m.resize(len(m) - 4096); last = ''\n"
            "def hook(event, arguments):\n"
            "    global last\n"
            "    if event == 'open' and str(arguments[0]).startswith('/proc/self/'):\n"
            "        if last == '/proc/self/maps' != arguments[0]: m.resize(1 << 20)\n"
            "        last = arguments[0]\n"
            "sys.addaudithook(hook)"
        )
        for number in range(_CELLS):
            session.run(f"m[-8:] = b'%8d' % {number}")
        assert session.run("len(m)").value == str(1 << 20)
        die(session)
        assert session.run("int(m[-8:])").value == str(_CELLS - 1)


def test_memory_that_no_child_gets_is_lost_alone(session: Session) -> None:
    """The pages of it that are written are none of a copy's."""
    session.run("m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)\nm.madvise(mmap.MADV_DONTFORK)")
    for number in range(_CELLS):
        session.run(f"x = {number}; m[{number} * 4096] = 1")
    die(session)
    assert session.get("x") == _CELLS - 1


@pytest.mark.parametrize(
    ("change", "shown", "value"),
    [
        ("os.mkdir('a'); os.chdir('a')", "os.path.basename(os.getcwd())", "'a'"),
        ("os.umask(0o077)", "oct(os.umask(0))", "'0o77'"),
        (
            "resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))",
            "resource.getrlimit(resource.RLIMIT_STACK)[0]",
            "1048576",
        ),
        (
            "signal.signal(signal.SIGUSR2, lambda *_: None)",
            "os.kill(os.getpid(), signal.SIGUSR2)",
            None,
        ),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, [34])",
            "34 in signal.pthread_sigmask(0, [])",
            "True",
        ),
        (
            "m = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE); m[0] = 7",
            "m[0]",
            "7",
        ),
    ],
    ids=["directory", "mask", "limit", "handler", "blocked", "mapping"],
)
def test_what_is_no_memory_is_as_the_last_cell_left_it(
    session: Session, change: str, shown: str, value: str | None
) -> None:
    session.run(change)
    die(session)
    assert session.run(shown).value == value


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(900,)).start()",
            "thread",
        ),
        ("signal.signal(14, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 900)", "timer"),
        ("pipe = os.pipe()", "a pipe"),
    ],
    ids=["thread", "timer", "pipe"],
)
def test_what_a_cell_leaves_that_cannot_be_kept_is_named(
    session: Session, change: str, lost: str
) -> None:
    assert session.run(change).error is None
    assert any(lost in name for name in die(session).lost)


def test_a_file_that_comes_while_a_copy_is_looked_at_goes_back_too(jailed: Sandbox) -> None:
    # A worker that looks closely reads its limits after it has seen an empty workspace: first as
    # it begins to renew copies, and for the third time if it looks closely once more.
    for look in (1, 3):
        with jailed.session() as session:
            session.run(
                "import os, sys\nlooks = 0\n"
                "def hook(event, arguments):\n"
                "    global looks\n"
                "    if event == 'open' and arguments[0] == '/proc/self/limits':\n"
                "        looks += 1\n"
                f"        if looks == {look}: open('/workspace/f', 'w').close()\n"
                "sys.addaudithook(hook)"
            )
            for number in range(_CELLS):
                session.run(f"x = {number}")
            there = session.run("os.listdir('/workspace')").value
            assert there == "['f']" or look != 1
            die(session)
            assert session.run("os.listdir('/workspace')").value == there


def test_handlers_that_raise_while_a_copy_is_made_leave_no_signal_blocked(
    session: Session,
) -> None:
    session.run(
        "raised = 0\n"
        "def handler(number, frame):\n"
        "    global raised\n"
        "    while frame is not None:\n"
        "        if frame.f_code.co_filename.endswith('jail/signals.py'):\n"
        "            raised += 1\n"
        "            raise ArithmeticError\n"
        "        frame = frame.f_back\n"
        "signal.signal(signal.SIGUSR1, handler)\n"
        "host = os.getpid()\n"
        "if not os.fork():\n"
        "    while os.getppid() == host:\n"
        "        os.kill(host, signal.SIGUSR1)\n"
        "        for _ in range(2000): pass\n"
        "    os._exit(0)"
    )
    raised = False
    for _ in range(_MANY):
        blocked = session.run("signal.pthread_sigmask(signal.SIG_BLOCK, [])").value
        assert blocked == "set()"
        if raised:
            return
        raised = bool(session.get("raised"))
    pytest.fail("no signal came in the moment that this is about")


def test_files_that_a_cell_leaves_go_back_with_it(session: Session) -> None:
    for number in range(3):
        session.run(f"x = open('/workspace/f', 'w').write('{number}')")
    assert isinstance(session.run("os.remove('/workspace/f'); os._exit(1)"), Killed)
    assert session.run("open('/workspace/f').read()").value == "'2'"


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_small_limit_of_files_ends_nothing(jailed: Sandbox, when: str) -> None:
    limit = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    )
    with jailed.session() as session:
        if when == "first":
            session.run(limit)
        for number in range(_CELLS):
            session.run(f"x = {number}")
        if when == "last":
            session.run(limit)
        session.run("y = x")
        die(session)
        assert session.get("y") == _CELLS - 1


def test_no_room_for_what_was_written_costs_nothing(session: Session) -> None:
    session.run(
        "with open('/dev/shm/full', 'wb') as file:\n"
        "    try:\n        while True: file.write(bytes(1 << 20)); file.flush()\n"
        "    except OSError: pass"
    )
    for number in range(_CELLS):
        session.run(f"x = [{number}] * 100_000")
    die(session)
    assert session.run("x[-1], len(x)").value == f"({_CELLS - 1}, 100000)"


def test_code_that_closes_and_takes_descriptors_harms_nothing_of_its_own(session: Session) -> None:
    session.run("os.closerange(3, 900)\nheld = [open('/workspace/f', 'w+') for _ in range(200)]")
    session.run("for file in held: file.write('x'); file.flush()")
    for number in range(_CELLS):
        session.run(f"x = {number}")
    assert session.run("os.path.getsize('/workspace/f')").value == "1"
    die(session)
    assert session.get("x") == _CELLS - 1


def test_what_cannot_be_tracked_leaves_nothing_open(session: Session) -> None:
    look = "len(os.listdir('/proc/self/fd'))"
    # A page between two that are shared is one more piece of memory to ask about.
    session.run(
        "pages = [mmap.mmap(-1, 4096, way) for _ in range(40)\n"
        "         for way in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]"
    )
    held = [int(session.run(look).value or "") for _ in range(20)]
    assert held[-1] <= held[0]
    session.run("x = 'last'")
    die(session)
    assert session.get("x") == "last"


def test_copies_that_are_ended_are_made_again(session: Session) -> None:
    for number in range(4):
        session.run(
            f"x = {number}\nfor pid in {PROCESSES.splitlines()[1]}:\n"
            "    if pid not in (1, os.getpid()): os.kill(pid, signal.SIGKILL)"
        )
        session.run("y = x")
    die(session)
    assert (session.get("x"), session.get("y")) == (3, 3)


def test_a_branch_and_its_session_go_on_from_the_last_cell(session: Session) -> None:
    session.run("x = 'both'")
    with session.branch() as branch:
        assert branch.get("x") == "both"
        for number in range(_CELLS):
            session.run(f"x = {number}")
            branch.run(f"x = -{number}")
        for each in (session, branch):
            die(each)
        assert (session.get("x"), branch.get("x")) == (_CELLS - 1, 1 - _CELLS)


def test_code_may_not_use_what_notes_its_writing(session: Session) -> None:
    """But for registering: no other request of userfaultfd's reaches the kernel."""
    outcome = session.run(
        "import errno, fcntl\n"
        "held = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]\n"
        "leads = {path: os.readlink(path) for path in held if os.path.lexists(path)}\n"
        "fd, = (int(path.split('/')[-1]) for path in leads if 'userfaultfd' in leads[path])\n"
        "found = set()\n"
        "for number in range(1, 9):\n"
        "    for size in range(0, 49, 8):\n"
        "        for way in (1, 2, 3):\n"
        "            request = way << 30 | size << 16 | 0xAA << 8 | number\n"
        "            try: fcntl.ioctl(fd, request, bytes(size))\n"
        "            except OSError as error: found.add(errno.errorcode[error.errno])\n"
        "            else: found.add(hex(request))\n"
        "found"
    )
    # What has another size is no request that the kernel knows.
    assert outcome.value in ("{'EINVAL', 'EPERM'}", "{'EPERM', 'EINVAL'}")


def test_code_is_not_told_where_its_pages_lie(session: Session) -> None:
    """Where a page lies in the machine's memory helps who attacks the memory itself."""
    outcome = session.run(
        "held = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]\n"
        "leads = {path: os.readlink(path) for path in held if os.path.lexists(path)}\n"
        "fd, = (int(path.split('/')[-1]) for path in leads if leads[path].endswith('/pagemap'))\n"
        "entry = os.pread(fd, 8, id(held) // 4096 * 8)\n"
        "present = entry[7] >> 7  # of 64 bits the highest; the lowest 55 are where\n"
        "present, int.from_bytes(entry, 'little') & (1 << 55) - 1"
    )
    assert outcome.value == "(1, 0)"

"""System calls by their number, and options of calls, tried from inside in both tiers with filters.

Every number is tried that a session may not call, so a call that the table forgot, or that no
filter sees, is found whatever its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from repl_sandbox import Finished, Session
from repl_sandbox.jail.call_options import PRCTL_OPTIONS
from repl_sandbox.jail.seccomp import native_arch
from repl_sandbox.jail.syscalls import ALLOW, CONFINED, PAST_FILTERS, REFUSE, UNCHANGED, Refuse
from tests.security.jail.test_jail_powers import PRELUDE, errno_of

TIERS = ("jailed", "confined")
LAST: Final = 1200  # some hundreds more than the newest kernel has

# In a process of its own for each, because a kernel may end the caller.
PAST: Final = """
def ended(number):
    pid = os.fork()
    if pid == 0:
        ctypes.set_errno(0)
        libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
        os._exit(ctypes.get_errno())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_every_number_that_is_not_allowed_fails_as_the_table_says(session: Session) -> None:
    """ENOSYS where it has no row: of calls that a newer kernel has, too."""
    arch = native_arch()
    expected = dict.fromkeys((*range(LAST), 0x3FFF_FFFF), errno.ENOSYS)
    expected |= {number: row.errno for row in REFUSE if (number := row.number(arch)) is not None}
    other = {row.number(arch) for row in ALLOW} - {None}
    tried = {row.number(arch) for row in REFUSE if row.name in _CHANGED}
    expected = {n: e for n, e in expected.items() if n not in other | tried}
    session.set("numbers", sorted(expected))
    outcome = session.run(
        f"{PRELUDE}\nseen = [named(lambda: c('syscall', ctypes.c_long(n), 0, 0, 0, 0, 0, 0))"
        " for n in numbers]"
    )
    assert isinstance(outcome, Finished), outcome
    found: Any = session.get("seen")
    names = {number: errno.errorcode[code] for number, code in expected.items()}
    assert dict(zip(sorted(expected), found, strict=True)) == names
    assert len(expected) > 900


# Tried by arguments that matter, and in processes of their own.
_CHANGED: Final = {*PAST_FILTERS, *(row.call for row in UNCHANGED)}


def test_calls_that_no_filter_sees_do_nothing(session: Session) -> None:
    arch = native_arch()
    rows = {row.name: row.number(arch) for row in REFUSE if row.name in PAST_FILTERS}
    for name, number in rows.items():
        if number is not None:
            session.run(f"{PRELUDE}{PAST}seen = ended({number})")
            assert session.get("seen") in (-4, errno.ENXIO, errno.EPERM, errno.ENOSYS), name


def test_calls_that_confined_refuses_besides_fail(
    session: Session, request: pytest.FixtureRequest
) -> None:
    if session.isolation.tier != "confined":
        pytest.skip("rows of tier confined")
    arch = native_arch()
    rows = [row for row in CONFINED if isinstance(row, Refuse) and row.number(arch) is not None]
    for row in rows:
        call = f"c('syscall', ctypes.c_long({row.number(arch)}), 1, 1, 0, 0, 0, 0)"
        assert errno_of(session, call) == errno.errorcode[row.errno], row.name


@pytest.mark.parametrize(
    "call",
    [
        "c('prctl', 78, 1, 1 << 24, 0, 0)",  # PR_FUTEX_HASH: 1 GiB of the kernel's memory
        "c('prctl', 78, 2, 0, 0, 0)",
        "c('prctl', 79, 1, 0, 0, 0)",
        "c('prctl', 35, 8, 1 << 20, 0, 0)",  # PR_SET_MM
        "c('prctl', 47, 2, 5, 0, 0)",  # PR_CAP_AMBIENT
        "c('prctl', 59, 1, 0, 0, 0)",  # PR_SET_SYSCALL_USER_DISPATCH
        "c('prctl', 0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)",  # PR_SET_PTRACER
        "c('prctl', 77, 1, 0, 0, 0)",  # PR_TIMER_CREATE_RESTORE_IDS
        "c('prctl', (1 << 32) | 22, 2, b'', 0, 0)",  # PR_SET_SECCOMP with a high bit
        "fcntl.ioctl(0, 0x5412, b'x')",  # TIOCSTI
        "fcntl.ioctl(os.open('/proc/self/fd', os.O_RDONLY), 0xB701)",  # NS_GET_USERNS
        "fcntl.ioctl(os.pidfd_open(os.getpid()), 0xFF0B, bytearray(64))",  # PIDFD_GET_INFO
        "fcntl.ioctl(socket.socketpair()[0], 0x8901, (1).to_bytes(4, 'little'))",  # FIOSETOWN
        "fcntl.ioctl(socket.socketpair()[0], 0x5452, (1).to_bytes(4, 'little'))",  # FIOASYNC
        "fcntl.ioctl(socket.socketpair()[0], 0x8914, bytes(40))",  # SIOCSIFFLAGS
        "fcntl.fcntl(socket.socketpair()[0], 8, 1)",  # F_SETOWN
        "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",  # F_SETPIPE_SZ
        "fcntl.fcntl(os.open('.', os.O_RDONLY), 1026, 1)",  # F_NOTIFY
        "c('renameat2', -100, b'made', -100, b'moved', 4)",  # RENAME_WHITEOUT
        "c('renameat2', -100, b'made', -100, b'moved', 5)",
        "__import__('mmap').mmap(-1, 4096).madvise(20)",  # MADV_COLD
        "__import__('mmap').mmap(-1, 4096).madvise(21)",  # MADV_PAGEOUT
        "__import__('mmap').mmap(-1, 4096).madvise(25)",  # MADV_COLLAPSE
        "__import__('mmap').mmap(-1, 4096).madvise(100)",  # MADV_HWPOISON
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "os.setpriority(os.PRIO_USER, 0, 0)",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.sched_setparam(1, os.sched_param(0))",
    ],
)
def test_options_without_a_row_are_refused(session: Session, call: str) -> None:
    session.run("open('made', 'w').close()")
    assert errno_of(session, call) in ("EPERM", "EACCES")
    # Neither the kernel, which may not know the option, nor the state of the file refused it.
    assert session.run("import os\nsorted(os.listdir('.'))[-1]").value == "'made'"


def test_every_option_of_prctl_without_a_row_is_refused(session: Session) -> None:
    known = {row.number for row in PRCTL_OPTIONS}
    session.set("options", [number for number in range(400) if number not in known])
    session.run(f"{PRELUDE}seen = [named(lambda: c('prctl', o, 0, 0, 0, 0)) for o in options]")
    assert set(session.get("seen")) == {"EPERM"}  # type: ignore[arg-type]


def test_huge_pages_of_the_host_are_not_lent(session: Session) -> None:
    call = "__import__('mmap').mmap(-1, 1 << 21, 0x40022)"
    assert errno_of(session, call) == "ENOMEM"


def test_files_are_exchanged_and_kept_by_rename(
    session: Session, seen: Callable[[str], Any]
) -> None:
    found = seen(
        f"{PRELUDE}\nopen('one', 'w').write('1'); open('two', 'w').write('2')\n"
        "exchanged = named(lambda: c('renameat2', -100, b'one', -100, b'two', 2))\n"
        "kept = named(lambda: c('renameat2', -100, b'one', -100, b'two', 1))\n"
        "seen = [exchanged, kept, open('one').read(), open('two').read()]"
    )
    assert found == ["done", "EEXIST", "2", "1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the host's own limit may be finite")
def test_the_stack_may_grow(session: Session, seen: Callable[[str], Any]) -> None:
    deep = (
        "import resource, sys, threading\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY,) * 2)\n"
        "sys.setrecursionlimit(10**6)\n"
        "threading.stack_size(256 << 20)\n"
        "found = []\n"
        "def depth(n):\n    return 0 if n == 0 else 1 + max(depth(n - 1), -1)\n"
        "def main():\n    found.append(max(map(depth, [50_000])))\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
        "seen = [found, resource.getrlimit(resource.RLIMIT_STACK)]"
    )
    assert seen(deep) == [[50_000], [-1, -1]]

"""Memory of a session is bounded however it is come by, and counted once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from repl_sandbox import Finished, Limits, Sandbox
from repl_sandbox.host import proc, watchdog
from repl_sandbox.options import RecoveryMode
from tests.internals import session_links, watchdog_period
from tests.waiting import PATIENCE

TIERS = ("jailed", "confined")

LIBC = "import ctypes\nlibc = ctypes.CDLL(None)\n"


def test_memory_shared_between_processes_counts(sandbox: Sandbox) -> None:
    """MAP_SHARED, mmap.mmap's default, is in no resource limit."""
    code = (
        "import mmap, time\nblock = mmap.mmap(-1, 400 << 20)\n"
        "for i in range(0, 400 << 20, 4096): block[i] = 1\ntime.sleep(50)"
    )
    with sandbox.session(limits=Limits(memory="100MiB", timeout=PATIENCE)) as session:
        outcome = session.run(code)
        assert getattr(outcome, "reason", None) == "memory", outcome
        assert session.run("1 + 1").value == "2"


def test_memory_of_children_of_a_thread_counts(sandbox: Sandbox) -> None:
    """The kernel lists children by the thread that made them."""
    code = (
        "import os, signal, threading, time\n"
        "def family():\n"
        "    for _ in range(6):\n"
        "        if os.fork() == 0:\n"
        "            block = bytearray(60 << 20)\n"
        "            while True: signal.pause()\n"
        "    time.sleep(50)\n"
        "threading.Thread(target=family).start()\ntime.sleep(50)"
    )
    with sandbox.session(limits=Limits(memory="100MiB", timeout=PATIENCE)) as session:
        outcome = session.run(code)
        assert getattr(outcome, "reason", None) == "memory", outcome


def test_a_limit_applies_when_a_measurement_exceeds_the_period(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with many gigabytes of memory, or on a loaded machine."""
    look = proc.proportional_memory

    def slowly(processes: Iterable[int]) -> int:
        time.sleep(2 * watchdog_period())
        return look(processes)

    monkeypatch.setattr(proc, "proportional_memory", slowly)
    # The kernel's count of a group is no such look.
    monkeypatch.setattr(watchdog, "group_exceeds", lambda *_: None)
    code = "import time\nblock = bytearray(b'x') * (90 << 20)\nimport os\nos.fork()\n"
    code += "block[::4096] = block[::4096]\ntime.sleep(50)"
    with sandbox.session(limits=Limits(memory="100MiB", timeout=PATIENCE)) as session:
        outcome = session.run(code)
        assert getattr(outcome, "reason", None) == "memory", outcome


def test_pages_that_processes_share_by_copy_on_write_count_once(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nblock = bytearray(150 << 20)\n"
        "for i in range(0, len(block), 4096): block[i] = 1\n"
        "children = []\n"
        "for _ in range(4):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        time.sleep(0.5)\n        os._exit(0)\n"
        "    children.append(child)\n"
        "[os.waitpid(child, 0) for child in children]"
    )
    with sandbox.session(limits=Limits(memory="400MiB", timeout=PATIENCE)) as session:
        assert isinstance(session.run(code), Finished)


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfiles = [os.memfd_create('m') for _ in range(4)]\n"
        "for file in files:\n    for _ in range(50): os.write(file, bytes(1 << 20))",
        f"{LIBC}for _ in range(4): assert libc.shmget(0, ctypes.c_size_t(50 << 20), 0o1600) != -1",
        f"{LIBC}for _ in range(40): assert libc.semget(0, 32000, 0o1600) != -1",
    ],
    ids=["memfd", "shared memory of System V", "semaphores of System V"],
)
def test_memory_outside_of_any_process_cannot_be_allocated(sandbox: Sandbox, code: str) -> None:
    """Nothing would count it: it belongs to no process, and its tmpfs has no size."""
    with sandbox.session(limits=Limits(memory="100MiB", timeout=PATIENCE)) as session:
        outcome = session.run(f"{code}\nimport time\ntime.sleep(0.3)")
        assert not isinstance(outcome, Finished)


def _shared_pages(pid: int) -> set[str]:
    """The inodes of memory that a process may write to and shares: proc_pid_maps(5)."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    fields = [line.split() for line in lines]
    return {f"{device}:{inode}" for _, access, _, device, inode, *_ in fields if access == "rw-s"}


@pytest.mark.skipif(os.geteuid() != 0, reason="the processes of a session hide their memory")
@pytest.mark.parametrize("recovery", ["restart", "snapshot"])
def test_no_two_sessions_share_memory(recovery: RecoveryMode) -> None:
    """Nor with a session of a template that was forked from its own, before or after."""
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(isolation="jailed", recovery=recovery))
        sessions = [stack.enter_context(sandbox.session())]
        shared = stack.enter_context(sandbox.with_shared(word="one"))
        sessions += [
            stack.enter_context(each.session()) for each in (shared, sandbox, sandbox, shared)
        ]
        seen: set[str] = set()
        for session in sessions:
            links = session_links(session)
            pages = _shared_pages(links.worker_pid)
            assert pages, "the page that a worker shares with its init"
            assert pages == _shared_pages(links.pid)
            assert not pages & seen
            seen |= pages


# Makes mappings of a page each without a byte in them: every second page has other permissions.
MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def fill(count):
    start = libc.mmap(None, 2 * count * 4096, 0, 0x22, -1, 0)
    return sum(not libc.mprotect(start + 2 * n * 4096, 4096, 1) for n in range(count))
"""


def test_mappings_without_memory_count(sandbox: Sandbox) -> None:
    """The kernel has 16 MiB for the 64,000 mappings of a process, which are in no rlimit."""
    code = (
        "reading, writing = os.pipe()\n"
        "for _ in range(7):\n"
        "    if os.fork() == 0:\n"
        "        os.write(writing, b'%d' % fill(32_000))\n"
        "        time.sleep(600)\n"
        "    print(os.read(reading, 9), flush=True)\n"
        "time.sleep(600)"
    )
    with sandbox.session(limits=Limits(memory="48MiB", timeout=PATIENCE)) as session:
        outcome = session.run(MAPPINGS + code)
        assert getattr(outcome, "reason", None) == "memory", outcome
        assert outcome.stdout.startswith("b'32000'\n" * 2)  # two have theirs, and the next too many
        assert session.run("1 + 1").value == "2"


def test_one_process_may_have_as_many_mappings_as_the_kernel_allows(sandbox: Sandbox) -> None:
    """And its snapshots as well, which are not its memory."""
    with sandbox.session(limits=Limits(memory="48MiB", timeout=PATIENCE)) as session:
        assert session.run(f"{MAPPINGS}\nfill(30_000)").value == "30000"
        for _ in range(3):
            watched = f"time.sleep({5 * watchdog_period()})"
            outcome = session.run(f"{watched}\nlen(open('/proc/self/maps').readlines()) > 60_000")
            assert isinstance(outcome, Finished), outcome
            assert outcome.value == "True"

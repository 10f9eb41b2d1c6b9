"""Pages that a process has copied since it was forked: which they are, and having them at once."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import Any

import pytest

from repl_sandbox import Sandbox
from repl_sandbox.jail import memory
from tests.waiting import LONG

# Forks children of a parent with 16 pages of memory: the first writes to some of them, the second
# brings what was found of the first, the third does nothing. Prints what is found of each.
FAMILY = """
import json, mmap, os, ctypes
from repl_sandbox.zygote import copied
from repl_sandbox.zygote.working_set import RUN, WorkingSet

memory = mmap.mmap(-1, 16 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(16):
    memory[page * mmap.PAGESIZE] = 1
first = ctypes.addressof(ctypes.c_char.from_buffer(memory))

def child(act):
    # The runs of pages that a child has copied in which `act` was done.
    ready, done = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        act()
        os.write(done, b"1")
        os.read(wait, 1)
        os._exit(0)
    os.read(ready, 1)
    found = copied.find(os.getpid(), pid)
    os.write(go, b"1")
    os.waitpid(pid, 0)
    return found

def pages(runs):
    # Those in the memory, by their numbers.
    return [(at - first) // mmap.PAGESIZE + n for at, size in RUN.iter_unpack(runs)
            for n in range(size // mmap.PAGESIZE) if 0 <= at - first < len(memory)]

def write():
    for page in (3, 4, 5, 9): memory[page * mmap.PAGESIZE] = 2

runs = child(write)
print(json.dumps([pages(runs), pages(child(lambda: None)), BROUGHT]))
"""

REFUSED = """
import json
from repl_sandbox import Sandbox
from repl_sandbox.jail import bpf, processes, seccomp
assembler = bpf.Assembler()
allow, refuse = assembler.ret(0x7FFF0000), assembler.ret(0x00050000 | 22)  # EINVAL
assembler.jump(bpf.JEQ, 440, refuse, allow)
assembler.load(bpf.NUMBER_OFFSET)
processes.forbid_new_privileges()
seccomp.load(assembler.assemble())
with Sandbox() as sandbox, sandbox.session() as session:
    print(json.dumps(session.run("6 * 7").value))
"""


def _copies_on_request() -> bool:
    run = ctypes.create_string_buffer(16)
    try:
        memory.populate(ctypes.addressof(run), 0)
    except OSError:
        return False
    return True


on_request = pytest.mark.skipif(
    not _copies_on_request(),
    reason="this kernel takes MADV_POPULATE_WRITE from no process_madvise (before Linux 6.13)",
)


def _run(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_fork_has_written_to_is_found() -> None:
    written, untouched, _ = _run(FAMILY.replace("BROUGHT", "None"))
    assert written == [3, 4, 5, 9]
    assert untouched == []


def test_a_large_area_is_not_looked_at() -> None:
    """It may be terabytes that a module has only reserved."""
    written, *_ = _run(FAMILY.replace("16 * mmap", "(1 << 17) * mmap").replace("BROUGHT", "None"))
    assert written == []


@on_request
def test_it_is_brought_without_being_written_to() -> None:
    brought = "pages(child(WorkingSet(runs).bring))"
    *_, pages = _run(FAMILY.replace("BROUGHT", brought))
    assert pages == [3, 4, 5, 9]


@on_request
@pytest.mark.parametrize("recovery", ["snapshot", "restart"])
def test_a_sandbox_knows_it_of_its_sessions(recovery: str) -> None:
    with Sandbox(recovery=recovery) as sandbox:
        links = sandbox._zygote.spawn(0, 1 << 20, {})
        try:
            assert sandbox._zygote.learn(links)
        finally:
            sandbox._zygote.end(links)
        with sandbox.session() as session:
            assert session.run("6 * 7").value == "42"


def test_where_the_kernel_refuses_sessions_do_without() -> None:
    assert _run(REFUSED) == "42"

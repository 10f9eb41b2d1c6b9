"""A kernel that refuses a system call of the recipe, at every index: no session, and nothing leaks.

A fork of the sandbox's zygote loads a filter that refuses one row of the three batches with which a
session begins, and spawns a session under that filter.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_sandbox import IsolationError, Sandbox, SandboxError
from repl_sandbox.host import zygote as zygote_process
from tests.descriptors import opened
from tests.internals import zygote_pid
from tests.waiting import comes_to

# The file `told` says at its beginning which row is refused, counted through all three batches.
# Behind that the zygote says how many rows there are, of which steps those are that the filter
# refuses, and whether it refuses nothing else.
_BOOT = """
import ctypes, importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
boot._load_package()
from repl_sandbox.jail import users
from repl_sandbox.jail import seccomp
from repl_sandbox.native.forks import fork
from repl_sandbox.jail.seccomp import JEQ, NUMBER_OFFSET, Assembler, argument_offset
from repl_sandbox.zygote.spawn import SessionSpawn

REFUSED = 88  # an errno that none of them meets otherwise
told = os.open({told!r}, os.O_RDWR | os.O_CLOEXEC)
spawn, forks = SessionSpawn.spawn, []

def packed(batch, index):
    # steps.h, struct row: the arguments that are no slots; and all that tells it from another.
    mask = batch._packed_rows[index * 80 + 12][0]
    words = (ctypes.c_long * 6).from_buffer(batch._packed_rows, index * 80 + 32)
    used = len(batch._rows[index].arguments)
    return [(each, words[each]) for each in range(used) if not mask >> each & 1]

def refuse(number, known):
    assembler = Assembler()
    allow = assembler.ret(seccomp.SECCOMP_RET_ALLOW)
    label = assembler.ret(seccomp.SECCOMP_RET_ERRNO | REFUSED)
    for index, value in known:
        label = assembler.jump(JEQ, value & 0xFFFFFFFF, label, allow)
        label = assembler.load(argument_offset(index))
    label = assembler.jump(JEQ, number, label, allow)
    assembler.load(NUMBER_OFFSET)
    return assembler.assemble()

def under_a_filter(self, given, flags, *cgroup):
    while forks:
        os.waitpid(forks.pop(), 0)
    at = os.pread(told, 16, 0).strip(b" \\0")
    if not at:
        return spawn(self, given, flags, *cgroup)
    rows = [(batch, each) for batch in self._spawner._batches for each in range(len(batch))]
    batch, index = rows[int(at)]
    row, known = batch._rows[index], packed(batch, index)
    # All that the filter refuses: init and the worker take their steps at once.
    names = [
        ctypes.c_uint64.from_buffer(other._packed_rows, each * 80).value
        for other, each in rows
        if other._rows[each].number == row.number and packed(other, each) == known
    ]
    steps = [ctypes.string_at(name).decode() for name in names]
    said = json.dumps([len(rows), steps, len(known) == len(row.arguments)])
    os.pwrite(told, said.encode().ljust(400), 16)
    forks.append(fork())
    if forks[-1] == 0:
        try:
            seccomp.load(refuse(row.number, known))
            pid, written = spawn(self, given, flags, *cgroup)
            users.map_session(pid, self.jail.slot)
            os.write(written, bytes(8))
            for fd in (written, *given):
                os.close(fd)
            os.waitpid(pid, 0)
        finally:
            os._exit(0)
    raise OSError(REFUSED, "the session is the fork's")

SessionSpawn.spawn = under_a_filter
# The session speaks for itself; and no network is lent to what was never there.
from repl_sandbox.zygote import main
assert main._report_failure
main._report_failure = lambda *_: None
boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
"""


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_a_call_that_the_kernel_refuses_ends_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the step if the filter refuses no other call."""
    told, boot = tmp_path / "told", tmp_path / "boot.py"
    told.write_bytes(bytes(16))
    boot.write_text(_BOOT.format(boot=zygote_process.BOOT, told=str(told)))
    boot.chmod(0o644)
    monkeypatch.setattr(zygote_process, "BOOT", str(boot))
    with Sandbox(isolation="jailed") as sandbox:
        zygote = zygote_pid(sandbox)
        with sandbox.session() as session:
            assert session.run("1 + 1").value == "2"
        before = len(opened("self")), len(opened(zygote))
        index, rows, named = 0, 1, 0
        while index < rows:
            with open(told, "r+b", buffering=0) as file:
                file.write(str(index).encode().ljust(16))
            with pytest.raises(SandboxError) as caught:
                sandbox.session()
            rows, steps, exact = json.loads(told.read_bytes()[16:])
            if exact:
                assert isinstance(caught.value, IsolationError), (index, steps)
                assert caught.value.step in steps, (index, caught.value.step)
                assert "Errno 88" in str(caught.value)
                named += 1
            index += 1
        assert rows > 100
        assert named > 100
        told.write_bytes(bytes(16))
        with sandbox.session() as session:
            assert session.run("1 + 1").value == "2"
        assert comes_to(lambda: _children(zygote), "") == ""
        # A watchdog has files open for moments.
        assert comes_to(lambda: (len(opened("self")), len(opened(zygote))), before) == before

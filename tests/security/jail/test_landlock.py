"""Landlock: its restrictions, their inheritance, and the table of rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import Finished, Sandbox, Session
from repl_sandbox.jail import landlock, mounts
from repl_sandbox.jail.landlock import VERSIONS, FileAccess, Grant, kernel_abi, plan
from repl_sandbox.native.library import SyscallBatch
from tests.internals import set_ruleset_call
from tests.waiting import LONG

ABI = kernel_abi()
pytestmark = pytest.mark.skipif(not ABI, reason="this kernel has no Landlock")

User = Callable[[str], Any]

# Defines `refused(call)`: the class of the error, or "".
PRELUDE = """
import os, signal, socket, subprocess, sys, threading
def refused(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return ""
"""


def seen(session: Session, code: str) -> Any:
    outcome = session.run(f"{PRELUDE}\n{code}")
    assert isinstance(outcome, Finished), outcome
    return session.get("seen")


# ── in a session ──────────────────────────────────────────────────────────────────────────────

WRITES = "seen = {path: refused(lambda: open(path, 'w')) for path in %r}"


def test_accesses_allowed_by_permissions_and_mounts_are_refused(session: Session) -> None:
    paths = ["/dev/random", "/dev/urandom", "/proc/self/comm", "/proc/self/timerslack_ns"]
    assert seen(session, WRITES % paths) == dict.fromkeys(paths, "PermissionError")


def test_accesses_that_a_session_needs_are_allowed(session: Session) -> None:
    paths = ["/tmp/a", "/workspace/a", "/dev/shm/a", "/dev/null", "/dev/zero"]
    assert seen(session, WRITES % paths) == dict.fromkeys(paths, "")
    assert seen(session, "import multiprocessing\nmultiprocessing.Lock()\nseen = True")
    moved = "os.mkdir('/tmp/d')\nos.rename('/tmp/a', '/tmp/d/a')\nseen = os.listdir('/tmp/d')"
    assert seen(session, moved) == ["a"]


def test_a_refused_connection_has_a_hint_that_says_why(session: Session) -> None:
    error = session.run("import socket\nsocket.create_connection(('127.0.0.1', 9))").error
    assert error is not None
    assert "no network but a loopback of its own" in error.traceback


INHERITED = {
    "a user's fork": "pid = os.fork()\nif not pid: os._exit(13 if {trial} else 0)\n"
    "seen = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
    "a program": "code = 'import sys; sys.exit(13 if {trial} else 0)'\n"
    "code = 'def refused(call):\\n try: call()\\n except OSError: return 1\\n' + code\n"
    "seen = subprocess.run([sys.executable, '-c', code]).returncode",
    "a thread": "found = []\n"
    "thread = threading.Thread(target=lambda: found.append(13 if {trial} else 0))\n"
    "thread.start(); thread.join()\nseen = found[0]",
}


@pytest.mark.parametrize("who", INHERITED)
def test_the_ruleset_is_inherited(session: Session, who: str) -> None:
    trial = f'refused(lambda: open("{landlock.TRIAL}", "w"))'
    assert seen(session, INHERITED[who].format(trial=trial)) == 13


def test_a_worker_of_the_next_generation_has_it(session: Session) -> None:
    assert session.run("import os\nos._exit(1)").state == "rolled_back"
    assert seen(session, WRITES % [landlock.TRIAL]) == {landlock.TRIAL: "PermissionError"}
    assert next(each for each in session.isolation.layers if each.name == "landlock").active


STACK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
changes = ctypes.c_uint64(1 << 1)  # LANDLOCK_ACCESS_FS_WRITE_FILE
def stack():
    fd = libc.syscall(444, ctypes.byref(changes), 8, 0)
    try: return libc.syscall(446, fd, 0)
    finally: os.close(fd)
"""


def test_rulesets_of_code_take_rights_from_it_and_from_nothing_else(session: Session) -> None:
    """Sixteen is the most that the kernel stacks; a next worker is no child of this one."""
    session.run("open('a', 'w').write('1')")
    assert 0 < seen(session, STACK + "seen = [stack() for _ in range(20)]").count(0) <= 15
    assert not session.run("open('a', 'w')").ok
    assert session.run("open('/etc/passwd').read(1)").ok
    with session.branch() as branch:
        assert any("write protection" in name for name in branch.lost)
    session.files.put("a", b"2")
    assert session.run("import os; os._exit(1)").state == "rolled_back"
    trial = seen(session, WRITES % [landlock.TRIAL])
    assert trial == {landlock.TRIAL: "PermissionError"}


SIGNALS = """
import json
from repl_sandbox import Sandbox
with Sandbox() as sandbox, sandbox.session() as session:
    session.run("import os, signal, subprocess\\nchild = subprocess.Popen(['sleep', '600'])")
    session.run('''
def refused(call):
    try: call()
    except OSError as error: return type(error).__name__
    return ""
seen = [refused(lambda: os.kill(1, 0)), refused(lambda: os.kill(os.getpid(), 0)),
        refused(child.kill), child.wait()]
''')
    print(json.dumps(session.get("seen")))
"""


@pytest.mark.skipif(ABI < landlock.SCOPES, reason="scopes came with ABI 6")
def test_an_ordinary_user_s_code_cannot_query_its_init(user: User) -> None:
    """It has init's uid there; but it may end its own children."""
    assert user(SIGNALS) == ["PermissionError", "", "", -9]


def test_the_layer_says_what_it_restricts(session: Session) -> None:
    layer = next(each for each in session.isolation.layers if each.name == "landlock")
    assert layer.active
    assert f"ABI {ABI}" in layer.detail


# ── the ruleset, in a process of its own ──────────────────────────────────────────────────────

ALONE = """
import json, os
from repl_sandbox.jail import processes
from repl_sandbox.jail import landlock
from repl_sandbox.native.library import SyscallBatch
processes.forbid_new_privileges()
rows = [landlock.Grant("/", landlock.RUN, "all is read")]
plan = landlock.plan(rows, {abi}, "/dev/random")
batch = SyscallBatch([("Landlock", (landlock.NOT_TRIED, *landlock.restrict_rows(plan)))])
batch.run()
held = landlock.was_tried(batch)
def refused(call):
    try: call()
    except OSError as error: return type(error).__name__
    return ""
fd = os.open("/dev/null", os.O_RDONLY)
print(json.dumps([held, refused(lambda: os.mkdir({folder!r})), refused(lambda: os.kill(1, 0)),
    refused(lambda: os.listdir("/"))]))
"""


@pytest.mark.parametrize("abi", range(1, min(ABI, landlock.SOCKETS) + 1))
def test_every_version_up_to_the_kernels_can_be_asked_for(abi: int, tmp_path: Any) -> None:
    script = ALONE.format(abi=abi, folder=str(tmp_path / "new"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    signal = "PermissionError" if abi >= landlock.SCOPES else ""
    held, made, signalled, listed = json.loads(done.stdout)
    assert (held, made, listed) == (True, "PermissionError", "")
    if signal:
        assert signalled == signal


def test_without_landlock_nothing_is_applied() -> None:
    assert not [*landlock.restrict_rows(plan(landlock.JAILED, 0, landlock.TRIAL))]


def test_a_path_that_is_needed_and_missing_is_an_error() -> None:
    missing = "/nowhere-at-all"
    wanted = plan([Grant(missing, landlock.READ, "a test")], ABI)
    with pytest.raises(OSError, match="No such file"):
        # While rules are added, so before anything is restricted.
        SyscallBatch([("Landlock", landlock.restrict_rows(wanted))]).run()
    assert plan([Grant(missing, landlock.READ, "a test", optional=True)], ABI).rules == ()


def test_versions_are_whole_and_in_order() -> None:
    assert [version.abi for version in VERSIONS] == list(range(1, len(VERSIONS) + 1))
    assert all(version.kernel and version.reason for version in VERSIONS)
    every = FileAccess(0)
    for version in VERSIONS:
        assert not every & version.files
        every |= version.files
    assert every == FileAccess((FileAccess.RESOLVE_UNIX << 1) - 1)


def test_every_rule_has_a_reason_and_the_private_folders_have_rules() -> None:
    assert all(grant.reason for grant in landlock.JAILED)
    owned = {grant.path for grant in landlock.JAILED if grant.files & FileAccess.MAKE_REG}
    assert owned == set(mounts.PRIVATE)
    assert not any(
        grant.files & (FileAccess.MAKE_CHAR | FileAccess.MAKE_BLOCK) for grant in landlock.JAILED
    )
    commanded = {g.path for g in landlock.JAILED if g.files & FileAccess.IOCTL_DEV}
    assert commanded == {"/dev/pts"}
    assert not any(grant.files & FileAccess.IOCTL_DEV for grant in landlock.CONFINED)


def test_no_row_allows_the_trial_accesses() -> None:
    assert not any(
        grant.files & FileAccess.WRITE_FILE and f"{landlock.TRIAL}/".startswith(f"{grant.path}/")
        for grant in landlock.JAILED
    )


def test_a_kernel_with_landlock_that_refuses_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    set_ruleset_call(monkeypatch, refuse)
    with pytest.raises(PermissionError):
        kernel_abi()


def test_a_filter_that_refuses_landlock_fails_the_sandbox() -> None:
    """The zygote, under a filter that answers EPERM to landlock_create_ruleset alone."""
    script = """
import json
from repl_sandbox import IsolationError, Sandbox
from repl_sandbox.jail import processes
from repl_sandbox.jail import seccomp
from repl_sandbox.native import libc
assembler = seccomp.Assembler()
allow, deny = assembler.ret(0x7FFF0000), assembler.ret(0x00050001)
assembler.jump(seccomp.JEQ, 444, deny, allow)
assembler.load(seccomp.NUMBER_OFFSET)
processes.forbid_new_privileges()
seccomp.load(assembler.assemble())
try:
    Sandbox(isolation="jailed").close()
    print(json.dumps("made"))
except IsolationError as error:
    print(json.dumps([error.step, bool(error.remedy)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Landlock", True]


def test_each_session_has_its_own_ruleset(sandbox: Sandbox) -> None:
    with sandbox.session() as one, sandbox.session() as other:
        # An interpreter, or a checkout, that lies under /tmp is shown there.
        shown = seen(one, "import os\nseen = os.listdir('/tmp')")
        assert seen(one, WRITES % ["/tmp/mine"]) == {"/tmp/mine": ""}
        assert seen(other, WRITES % ["/tmp/mine"]) == {"/tmp/mine": ""}
        assert seen(other, "seen = sorted(os.listdir('/tmp'))") == sorted(["mine", *shown])
        assert seen(one, "os.remove('/tmp/mine')\nseen = os.listdir('/tmp')") == shown
        assert seen(other, "seen = sorted(os.listdir('/tmp'))") == sorted(["mine", *shown])

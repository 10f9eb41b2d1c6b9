"""The spawn of a session without Python: what both processes have, when init returns, failures."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Sandbox
from tests.internals import init_pid
from tests.waiting import LONG

# Spawns a session's init and its worker, as a zygote does. Each of the two reports its state; the
# list of both is printed.
_ZYGOTE = """
import errno, json, os, resource, signal, socket, sys
from dataclasses import replace
from repl_sandbox.jail import reserved_descriptors as descriptors
from repl_sandbox.jail import slots
from repl_sandbox.jail import landlock
from repl_sandbox.native.libc import call
from repl_sandbox.jail.users import FLAGS
from repl_sandbox.jail.recipe import SPAWN_STEPS
from repl_sandbox.jail.steps import Step
from repl_sandbox.jail.recipe import RECIPES
from repl_sandbox.jail.steps import batch
from repl_sandbox.jail.steps import Jail
from repl_sandbox.native.forks import NO_CGROUP, Role, Spawner
from repl_sandbox.native.library import StepError

def open_descriptors():
    return sorted(fd for fd in range(1024) if fd != told and is_open(fd))

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

def say(*words):
    os.write(told, json.dumps(words).encode() + b"\\n")

def tell():
    try:
        os.write(written, bytes(8))
    except BrokenPipeError:
        pass  # the session's processes have ended

def step(name, *rows):
    return Step(name, "", lambda jail: rows)

signal.signal(signal.SIGCHLD, lambda number, frame: None)
telling, told = os.pipe()
jail = Jail(None, 1 << 20, [], 40, b"", landlock.plan((), 0))
kept = {{0, 1, 2, descriptors.CONTROL, descriptors.MAPPED, descriptors.DONE, told}}
birth = batch(jail, [*SPAWN_STEPS, *{born}])
init = batch(replace(jail, descriptors=kept), [*RECIPES["jailed"].init, *{more}])
spawner = Spawner(
    birth, init, batch(jail, ()),
    awaited=(descriptors.CONTROL,), worker_mask=0, handshake=None,
)
mapped, written = os.pipe()
contained, done = os.pipe()
control, host = (end.detach() for end in socket.socketpair())
worker, _ = (end.detach() for end in socket.socketpair())
birth.slots[:8] = control, worker, os.dup(1), os.dup(2), mapped, written, contained, done
cgroup = NO_CGROUP
{before}
try:
    pid = spawner.spawn(FLAGS, cgroup)
except OSError as error:
    print(json.dumps([error.errno]))
    sys.exit()
if pid == 0:
    try:
        spawner.check()
    except StepError as error:
        say(spawner.role.name, error.step, error.errno)
        os._exit(1)
    if spawner.role == Role.WORKER:
        for fd in (telling, host, done, descriptors.DONE):
            os.close(fd)
        word = os.read(descriptors.CONTAINED, 4)
        say("worker", os.getpid(), list(word))
        {then}
        os._exit(0)
    found = open_descriptors() == [0, 1, 2, descriptors.CONTROL, descriptors.DONE]
    say("init", spawner.worker, os.getpid(), found)
    os._exit(0)
for fd in (told, done, contained, mapped):
    os.close(fd)
{after}
os.close(written)
with open(telling) as heard:
    lines = heard.readlines()
os.waitpid(pid, 0)
print(json.dumps(sorted(map(json.loads, lines))))
"""

_MAPPED = "tell()"
_BROKEN = "step('broken', call('setsid'))"
_BOTH = [["init", 2, 1, True], ["worker", 2, [0, 0, 0, 0]]]


def _said(
    *,
    born: str = "[]",
    more: str = "[]",
    before: str = "",
    then: str = "pass",
    after: str = _MAPPED,
) -> list[Any]:
    script = _ZYGOTE.format(born=born, more=more, before=before, then=then, after=after)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LONG
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert isinstance(said, list)
    return said


def test_init_and_worker_are_spawned_and_init_returns_after_the_worker_died() -> None:
    assert _said() == _BOTH


# A mount of version 2 of the process's own: machines that use version 1 have none.
_GROUP = """
import atexit, tempfile
from repl_sandbox.native import libc
libc.unshare(libc.CLONE_NEWNS)
libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
place = tempfile.mkdtemp()
atexit.register(os.rmdir, place)
libc.mount("none", place, "cgroup2", 0)
atexit.register(libc.umount, place, 0)
group = f"{place}/repl-test-{os.getpid()}"
os.mkdir(group)
atexit.register(os.rmdir, group)
cgroup = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount groups")
def test_a_session_is_spawned_in_a_cgroup_of_version_2() -> None:
    members = 'assert str(pid) in open(f"{group}/cgroup.procs").read().split()'
    assert _said(before=_GROUP, after=f"{members}; {_MAPPED}") == _BOTH


def test_a_missing_cgroup_of_version_2_is_reported_each_time() -> None:
    twice = """
cgroup = control
for _ in range(2):
    try:
        spawner.spawn(FLAGS, cgroup)
    except OSError as error:
        assert error.errno == errno.EBADF
"""
    assert _said(before=twice) == [errno.EBADF]


def test_init_returns_when_a_message_arrives() -> None:
    # The worker lives until init ends.
    said = _said(then="signal.pause()", after=f"{_MAPPED}; os.write(host, b'!')")
    assert ["init", 2, 1, True] in said


@pytest.mark.parametrize(
    ("born", "more", "after", "step", "failure"),
    [
        ("[]", f"[{_BROKEN}]", _MAPPED, "broken", errno.EPERM),
        ("[]", f"[{_BROKEN}, step('after', call('setsid'))]", _MAPPED, "broken", errno.EPERM),
        ("[]", "[]", "pass", "id maps", 0),
        ("[step('broken', call('close', -1))]", "[]", _MAPPED, "broken", errno.EBADF),
    ],
    ids=["the last step", "one before others", "maps that are never written", "before the fork"],
)
def test_a_step_that_fails_is_named(
    born: str, more: str, after: str, step: str, failure: int
) -> None:
    said = _said(born=born, more=more, after=after)
    assert said[0] == ["INIT", step, failure]


def test_a_worker_whose_init_fails_receives_nothing() -> None:
    said = _said(after="pass")
    assert said[1:] in ([], [["worker", 2, []]])


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a uid that has no other processes")
@pytest.mark.parametrize(("processes", "said"), [(0, [errno.EAGAIN]), (2, None)])
def test_a_refused_fork_is_reported(processes: int, said: list[Any] | None) -> None:
    """Of init, or of its worker."""
    limit = f"resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))"
    found = _said(before=f"os.setresuid(*[1_876_543_210] * 3); {limit}")
    assert found == (said or [["INIT", "worker", errno.EAGAIN]])


def test_each_process_knows_its_main_thread_as_the_kernel_does() -> None:
    """A thread of C libraries may signal the main one by what the C library keeps of its id."""
    code = """
import os, signal, threading
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(os.getpid()))
main = threading.main_thread().ident
def send(): signal.pthread_kill(main, signal.SIGUSR1)
def seen():
    heard.clear()
    thread = threading.Thread(target=send)
    thread.start(); thread.join()
    return heard == [os.getpid()]
seen()
"""
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        assert session.run(code).value == "True"
        assert session.run("os._exit(1)").state == "rolled_back"
        assert session.run("seen()").value == "True"


def test_an_idle_init_has_touched_hardly_any_memory() -> None:
    """In Python it would be two hundred pages and more."""
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        session.run("x = 1")
        stat = Path(f"/proc/{init_pid(session)}/stat")
        faults = int(stat.read_text().rpartition(")")[2].split()[7])
        assert 0 < faults < 80
        # It also answers requests.
        assert session.run("import os; os._exit(1)").state == "rolled_back"
        assert session.run("x").value == "1"

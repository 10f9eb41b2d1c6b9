"""An init that lives without Python: what both processes have, when it comes back, what fails."""

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
from tests.waiting import LONG

# Clones a session's first process and its worker, as a zygote does. Each of the two says what it
# finds; the list of both is printed.
_ZYGOTE = """
import json, os, resource, signal, socket, sys
from repl_sandbox.errors import IsolationError
from repl_sandbox.jail import landlock
from repl_sandbox.jail.calls import Calls
from repl_sandbox.jail.forks import fork_into
from repl_sandbox.jail.namespaces import FLAGS
from repl_sandbox.jail.quiet_init import Ends, QuietInit, prepare
from repl_sandbox.jail.recipe import INIT, Jail

def open_descriptors():
    return sorted(fd for fd in range(100) if fd != told and is_open(fd))

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

def say(*words):
    os.write(told, json.dumps(words).encode() + b"\\n")

signal.signal(signal.SIGCHLD, lambda number, frame: None)
steps = [*INIT, *{more}]
quiet = QuietInit(steps, own_ids=False)
telling, told = os.pipe()
jail = Jail(None, 1 << 20, [], 40, b"", landlock.plan((), 0))
jail.mapped, written = os.pipe()
jail.contained, done = os.pipe()
control, host = (end.detach() for end in socket.socketpair())
out, err = os.dup(1), os.dup(2)
jail.kept = {{0, 1, 2, control, jail.mapped, done, told}}
quiet.prepare(jail, Ends(out, err, written, done, (control,)))
{before}
try:
    pid = {clone}(FLAGS)
except OSError as error:
    print(json.dumps([error.errno]))
    sys.exit()
if pid == 0:
    try:
        worker = quiet.begin("jailed")
    except IsolationError as error:
        say("init", error.step, error.__cause__.errno)
        os._exit(1)
    if worker == 0:
        for fd in (telling, host, done):
            os.close(fd)
        word = os.read(jail.contained, 4)
        say("worker", os.getpid(), list(word))
        {then}
        os._exit(0)
    say("init", worker, os.getpid(), open_descriptors() == sorted([0, 1, 2, control]))
    os._exit(0)
for fd in (told, done, jail.contained, jail.mapped):
    os.close(fd)
{after}
os.close(written)
with open(telling) as heard:
    lines = heard.readlines()
os.waitpid(pid, 0)
print(json.dumps(sorted(map(json.loads, lines))))
"""

_MAPPED = "os.write(written, bytes(8))"
_BROKEN = '[("broken", Calls((("setsid",),)))]'


def _said(
    *,
    more: str = "[]",
    before: str = "",
    clone: str = "quiet.clone",
    then: str = "pass",
    after: str = _MAPPED,
) -> list[Any]:
    script = _ZYGOTE.format(more=more, before=before, clone=clone, then=then, after=after)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LONG
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert isinstance(said, list)
    return said


@pytest.mark.parametrize("clone", ["quiet.clone", "fork_into"])
def test_both_are_there_and_init_comes_back_when_its_worker_has_died(clone: str) -> None:
    """Also where Python has to make the first process, as into a group of version 2."""
    assert _said(clone=clone) == [["init", 2, 1, True], ["worker", 2, [0, 0, 0, 0]]]


# A mount of version 2 of the process's own: machines that use version 1 have none.
_GROUP = """
import atexit, tempfile
from repl_sandbox.jail import libc
libc.unshare(libc.CLONE_NEWNS)
libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
place = tempfile.mkdtemp()
atexit.register(os.rmdir, place)
libc.mount("none", place, "cgroup2", 0)
atexit.register(libc.umount, place, 0)
group = f"{place}/repl-test-{os.getpid()}"
os.mkdir(group)
atexit.register(os.rmdir, group)
folder = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
"""
_INTO_GROUP = "(lambda flags: quiet.clone(flags, folder))"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount groups")
def test_it_is_born_into_a_group_of_version_2() -> None:
    members = 'assert str(pid) in open(f"{group}/cgroup.procs").read().split()'
    said = _said(before=_GROUP, clone=_INTO_GROUP, after=f"{members}; {_MAPPED}")
    assert said == [["init", 2, 1, True], ["worker", 2, [0, 0, 0, 0]]]


def test_a_group_of_version_2_that_is_none_is_told_again_and_again() -> None:
    twice = """
for _ in range(2):
    try:
        quiet.clone(FLAGS, control)
    except OSError as error:
        assert error.errno == errno.EBADF
"""
    assert _said(
        before=f"import errno; {twice}", clone="(lambda flags: quiet.clone(flags, control))"
    ) == [errno.EBADF]


def test_init_comes_back_when_there_is_something_to_hear() -> None:
    # The worker lives until init ends.
    said = _said(then="signal.pause()", after=f"{_MAPPED}; os.write(host, b'!')")
    assert ["init", 2, 1, True] in said


@pytest.mark.parametrize(
    ("more", "after", "step", "failure"),
    [
        (_BROKEN, _MAPPED, "broken", errno.EPERM),
        (f"{_BROKEN[:-1]}, ('after', Calls((('getpid',),)))]", _MAPPED, "broken", errno.EPERM),
        ("[]", "pass", "id maps", errno.ESRCH),
    ],
    ids=["the last step", "one before others", "maps that are never written"],
)
def test_a_step_that_fails_is_named_and_its_worker_does_not_go_on(
    more: str, after: str, step: str, failure: int
) -> None:
    said = _said(more=more, after=after)
    assert said[0] == ["init", step, failure]
    # What init tells its worker first is the failure; its end may be sooner than that is said.
    assert said[1:] in ([], [["worker", 2, [failure, 0, 0, 0]]])


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a uid that has no other processes")
@pytest.mark.parametrize(("processes", "said"), [(0, [errno.EAGAIN]), (2, None)])
def test_no_room_for_a_process_is_told(processes: int, said: list[Any] | None) -> None:
    """Of init, or of its worker."""
    limit = f"resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))"
    found = _said(before=f"os.setresuid(*[1_876_543_210] * 3); {limit}")
    assert found == (said or [["init", "worker", errno.EAGAIN]])


def test_steps_that_are_not_of_calls_are_left_to_python() -> None:
    assert _said(before="assert prepare([('x', lambda jail: None)], own_ids=False) is None")


def test_more_descriptors_than_there_is_room_for_are_refused() -> None:
    before = """
jail.kept |= set(range(100, 200, 2))
try:
    quiet.prepare(jail, Ends(out, err, written, done, (control,)))
except OSError as error:
    print(json.dumps([error.errno]))
    sys.exit()
"""
    assert _said(before=before) == [errno.E2BIG]


def test_an_init_of_which_nothing_was_asked_has_touched_hardly_any_memory() -> None:
    """In Python it would be two hundred pages and more."""
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        session.run("x = 1")
        stat = Path(f"/proc/{session._core.links.pid}/stat")
        faults = int(stat.read_text().rpartition(")")[2].split()[7])
        assert 0 < faults < 80
        # And it does what it is asked for.
        assert session.run("import os; os._exit(1)").state == "rolled_back"
        assert session.run("x").value == "1"

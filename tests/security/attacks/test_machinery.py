"""Processes that serve all sessions of a sandbox go on serving, whatever one session does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox.jail.landlock import kernel_abi
from repl_sandbox.jail.processes import descendants
from tests.waiting import LONG

landlocked = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")

# By chmod(2), which Landlock leaves alone, code closes the directory of all sessions.
CLOSING = """
import json, os
from repl_sandbox import Limits, Sandbox

CLOSE = "import os; os.chmod(os.path.dirname(os.path.dirname(os.getcwd())), 0)"
FILL = CLOSE + '''
with open("big", "wb") as file:
    for _ in range(64):
        file.write(bytes(1 << 20))
while True:
    pass
'''

with Sandbox(isolation="confined", limits=Limits(workspace="8MiB", timeout=60)) as sandbox:
    first, neighbour = sandbox.session(), sandbox.session()
    neighbour.run("x = 42")
    base = os.path.dirname(first._core.links.folder)
    assert first.run(CLOSE).ok
    first.close()
    closer = sandbox.session()
    seen = [neighbour.run("x").value, closer.run("6 * 7").value, closer.run(FILL).reason]
    assert closer.run(CLOSE).ok
    with sandbox.session() as last:
        seen.append(last.run("open('file', 'w').write('one')").value)
    assert closer.run(CLOSE).ok
print(json.dumps([seen, os.path.exists(base)]))
"""

WITHOUT_DESCRIPTORS = """
import os, resource, time
from repl_sandbox import Limits, Sandbox

MANY = '''
import os, time
for _ in range(5):
    if os.fork() == 0:
        held = os.urandom(30 << 20)
        time.sleep(50)
time.sleep(50)
'''

limits = Limits(memory="48MiB", timeout=60)
with Sandbox(cgroup="off", limits=limits) as sandbox, sandbox.session() as session:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    held = []

    def take():
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    # The watchdog looks while this cell runs, and there is no descriptor left to look by.
    session.run("import time; print(1, flush=True); time.sleep(0.5)",
                on_output=lambda *_: take())
    assert held
    for fd in held:
        os.close(fd)
    print(getattr(session.run(MANY), "reason", None))
"""


# Script that takes POSIX timers, which the kernel counts by user, and not by session.
TAKING = """
import ctypes, json
from repl_sandbox import Sandbox

TAKE = '''
import ctypes
libc = ctypes.CDLL(None)
made = 0
while made < 200_000 and libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0:
    made += 1
'''
libc = ctypes.CDLL(None)
seen = []
for tier in {tiers}:
    with Sandbox(isolation=tier) as sandbox, sandbox.session() as session:
        session.run(TAKE)
        timers = session.get("made")
        left = libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0
        seen.append([tier, 0 < timers < 5000, left])
print(json.dumps(seen))
"""


def test_a_session_cannot_use_up_the_timers_of_the_host_s_user(user: Callable[[str], Any]) -> None:
    tiers = ["jailed", "confined"] if kernel_abi() else ["jailed"]
    assert user(TAKING.replace("{tiers}", repr(tiers))) == [[tier, True, True] for tier in tiers]


@landlocked
def test_a_session_that_closes_the_shared_directory_blocks_no_other(
    user: Callable[[str], Any],
) -> None:
    seen, left = user(CLOSING)
    assert seen == ["42", "42", "workspace", "3"]
    assert not left


def test_the_watchdog_goes_on_after_the_host_ran_out_of_descriptors() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "memory"), done.stderr


def test_processes_are_found_at_any_depth() -> None:
    depth = 80
    read, write = os.pipe()
    first = subprocess.Popen(
        [sys.executable, "-c", _CHAIN.format(depth=depth, write=write)],
        pass_fds=[write],
        start_new_session=True,
    )
    os.close(write)
    assert os.read(read, 1) == b"1"
    try:
        counted = subprocess.run(
            [sys.executable, "-c", _COUNT.format(pid=first.pid)],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=True,
        )
        assert json.loads(counted.stdout) == depth + 1
        assert len(set(descendants(first.pid))) == depth + 1
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        os.close(read)


_CHAIN = """
import os, signal
for _ in range({depth}):
    if os.fork():
        signal.pause()
os.write({write}, b"1")
signal.pause()
"""

# A thousand processes below each other take long to make; so few levels of calls do not.
_COUNT = """
import sys
from repl_sandbox.jail.processes import descendants
sys.setrecursionlimit(40)
print(sum(1 for _ in descendants({pid})))
"""

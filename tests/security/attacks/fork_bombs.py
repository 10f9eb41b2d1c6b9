"""Fork bombs, and their effects on their session, the host and a neighbour.

`look` is run by the suite's own user and, as text, by an ordinary one.
"""

import json  # noqa: F401 - what the ordinary user's script prints with
import os
import threading
import time
from typing import Any

from repl_sandbox import Killed, Limits, Sandbox, Session
from tests.internals import init_pid

HEAD = "import ctypes, os, signal, subprocess, threading, time\nprctl = ctypes.CDLL(None).prctl\n"
# Daemons without a parent in the session that fork in a loop.
DAEMONS = """
for _ in range(20):
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        os.setsid()
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        while True:
            try: os.fork()
            except OSError: pass
while True: pass
"""
STORMS = {
    "daemons": DAEMONS,
    "daemons that take no signal": """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
"""
    + DAEMONS,
    "forks": """
while True:
    try: os.fork()
    except OSError: pass
""",
    "forks with threads": """
def storm():
    while True:
        try:
            if os.fork() == 0: threading.Thread(target=storm).start()
        except (OSError, RuntimeError): pass
storm()
""",
    "daemons forked twice": """
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        while True: pass
while True:
    try:
        daemon()
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except OSError: pass
""",
    "parents that end": """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
while True: pass
""",
    "programs": """
while True:
    try: subprocess.Popen(["sleep", "100"], start_new_session=True)
    except OSError: pass
""",
    "shells": """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        os.execv("/bin/sh", ["sh", "-c", "while :; do sh -c : & done"])
while True: pass
""",
    "threads": """
while True:
    try: threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    except RuntimeError: pass
""",
    "stopped processes": """
while True:
    try:
        if os.fork() == 0:
            os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)
            while True: pass
    except OSError: pass
""",
    "zombies": """
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
""",
    "memory": """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        block = bytearray(4 << 20)
        while True:
            try: os.fork()
            except OSError: pass
            block[::4096] = b'x' * (len(block) // 4096)
while True: pass
""",
    "processes that wake each other": """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while True:
            try: os.fork(), os.kill(-1, signal.SIGCONT)
            except OSError: pass
while True: pass
""",
}
# The fork bombs that may stay below the process limit.
BELOW = ["parents that end", "shells"]
LIMITS = Limits(timeout=60, processes=32)
# Processes that a session may have besides `Limits.processes`: its init, snapshots for recovery,
# those that show that the limit was passed, and those that counting misses while processes come and
# go.
BESIDES = 32


class Seen(threading.Thread):
    """Counts the threads of the processes below `init` until it is stopped."""

    def __init__(self, init: int) -> None:
        super().__init__(daemon=True)
        self._init, self.most, self.stops = init, 0, threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self.stops.wait(0.005):
            self.most = max(self.most, self._look())

    def _look(self) -> int:
        found, threads = [self._init], 0
        while found:
            task = f"/proc/{found.pop()}/task"
            try:
                names = os.listdir(task)
                threads += len(names)
                for name in names:
                    with open(f"{task}/{name}/children") as file:
                        found += map(int, file.read().split())
            except OSError:
                continue
        return threads


class Quiet(threading.Thread):
    """Runs short loops in a quiet session until it is stopped: how late they are on this machine.

    A machine that keeps this session from the processor keeps others from it, too.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(daemon=True)
        self._session, self.latest, self.stops = session, 0.0, threading.Event()

    def run(self) -> None:
        """Measure again and again."""
        while not self.stops.is_set():
            self.latest = max(self.latest, late(self._session, "while True: pass", 0.2)[1])


def late(session: Session, code: str, timeout: float) -> tuple[Any, float]:
    """The outcome, and how many seconds after its time it came."""
    begun = time.monotonic()
    outcome = session.run(code, timeout=timeout)
    return outcome, time.monotonic() - begun - timeout


def value_after(session: Session, code: str) -> str | None:
    """The value of `code` in a session after a fork bomb.

    Where processes are counted from outside, those that the fork bomb left may have more than the
    limit once more; then the cell is ended for it, and the next one has the same variables.
    """
    outcome = session.run(code)
    if isinstance(outcome, Killed) and outcome.reason == "processes":
        outcome = session.run(code)
    return outcome.value


def look(tier: str, python: str | None, names: list[str], timeout: float) -> dict[str, Any]:
    """For each of the fork bombs `names`: the outcome and its circumstances."""
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        return {name: _met(sandbox, name, timeout) for name in names}


def _met(sandbox: Sandbox, name: str, timeout: float) -> dict[str, Any]:
    """What a fork bomb came to. One that a busy machine kept from its limit gets more time."""
    seen = _storm(sandbox, name, timeout)
    for longer in () if name in BELOW else (4 * timeout, 16 * timeout):
        if "processes" in seen["limits"]:
            break
        seen = _storm(sandbox, name, longer)
    return seen


def _storm(sandbox: Sandbox, name: str, timeout: float) -> dict[str, Any]:
    with sandbox.session() as neighbour, sandbox.session() as session:
        neighbour.run("x = 42")
        session.run("y = 43")
        seen, beside = Seen(init_pid(session)), Quiet(neighbour)
        seen.start()
        beside.start()
        outcome, lateness = late(session, HEAD + STORMS[name], timeout)
        for thread in (seen, beside):
            thread.stops.set()
            thread.join()
        return {
            "outcome": type(outcome).__name__,
            "limits": [*outcome.limits, getattr(outcome, "reason", "")],
            "most": seen.most,
            "late": lateness,
            "quiet": beside.latest,
            "values": [value_after(session, "y"), neighbour.run("x").value],
        }

"""The steps of the soak: each does something to a session and to its model, alike."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from repl_sandbox import Finished, Killed, Raised, Sandbox, SandboxError, TimedOut
from repl_sandbox.types import AnyOutcome
from tests.internals import init_pid, session_links, worker_pid

from .figures import Figures
from .model import KEPT_ITEMS, Model, State, difference

SETUP = """
import ctypes, os, signal, subprocess, sys, threading
total, items = 0, []
"""
# A file that stays open, so that snapshots of the session are forks; or a file that is opened for
# each line, so that snapshots are updated.
LOGS = (
    'log = open("log", "a")\n',
    """
class Log:
    def write(self, text):
        with open("log", "a") as file:
            return file.write(text)
    def flush(self):
        pass
log = Log()
log.write("")
""",
)
# Code of the processes that cells leave behind.
LEFT = "import signal; signal.pause()"
# Effects of a cell that then dies; none of them may be visible afterwards.
HARM = """
total = -1
items.clear()
log.write("gone\\n"), log.flush()
open("junk", "w").write("junk")
for name in list(globals()):
    if name.startswith("given"):
        del globals()[name]
for name in os.listdir("."):
    if name.startswith("file"):
        os.unlink(name)
"""
DEATHS = (
    "os._exit(3)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.abort()",
    "ctypes.string_at(0)",
    "os.closerange(3, 2000)\nos._exit(0)",
    f"child = subprocess.Popen([sys.executable, '-c', {LEFT!r}])\nos._exit(4)",
    "threading.Thread(target=lambda: os._exit(5)).start()\nwhile True: pass",
    "while True:\n    if os.fork() == 0: signal.pause()\n    elif os.fork(): os._exit(6)",
)
STUBBORN = f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n{HARM}while True: pass"
# Steps after which a session has all snapshots again that it may have lost.
_LONG_AGO = 6
# Interrupts in a row that a machine with much to do may leave no time for.
_LATE_AT_MOST = 20
_CELLS_LOST = re.compile(r"the effects of cells (\d+) to (\d+)")


class Unlike(AssertionError):
    """A session is not what its model says."""


class Soaked:
    """One session of the soak, its model, and random actions on both."""

    def __init__(self, sandbox: Sandbox, history: int, seed: str, figures: Figures) -> None:
        self._sandbox = sandbox
        self._seed = seed
        self._random = random.Random(seed)
        self._figures = figures
        self._model = Model(history)
        self._told: list[str] = []  # the steps of this session, for debugging
        self._setup = SETUP + self._random.choice(LOGS)
        self._shot_cells_ago = _LONG_AGO  # since its worker was shot at any moment
        self._session = sandbox.session()
        self._open()

    @property
    def worker(self) -> int:
        """The process id of the worker, as this process sees it."""
        return worker_pid(self._session)

    @property
    def init(self) -> int:
        """The process id of the session's init, as this process sees it."""
        return init_pid(self._session)

    @property
    def folder(self) -> str:
        """Directory of the session's files, "" for a session with its own rootfs view."""
        return session_links(self._session).folder

    def step(self) -> None:
        """Do one action, and compare the session with its model."""
        weights = [weight for _, weight in _STEPS]
        act = self._random.choices([act for act, _ in _STEPS], weights)[0]
        self._told.append(act.__name__)
        try:
            act(self)
            self._compare()
        except Exception as error:
            last = " ".join(self._told[-12:])
            raise Unlike(f"session {self._seed}, after {last}: {error}") from error
        self._figures.step(act.__name__)
        self._shot_cells_ago += 1

    def settle(self) -> None:
        """Have the session come to rest: when this returns, it is waiting for a command."""
        self._compare()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    # ── what is done ──────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        if self._random.random() < 0.5:
            self.set()
        if self._random.random() < 0.5:
            self.put()
        if self._random.random() < 0.3:
            self._die_at_first()
        self._ran(self._setup)
        self._fresh(self._model.cell())

    def _die_at_first(self) -> None:
        self._killed(self._session.run("import os\nopen('junk', 'w')\nos._exit(1)"))
        self._compare()

    def reopen(self) -> None:
        self._session.close()
        self._session = self._sandbox.session()
        self._model.restart()
        self._open()

    def _fresh(self, state: State) -> None:
        state.variables |= {"total": 0, "items": []}
        state.files.setdefault("log", b"")

    def add(self) -> None:
        number = self._random.randrange(1000)
        self._ran(_adding(number))
        self._model.cell().add(number)

    def add_many(self) -> None:
        for _ in range(self._random.randrange(2, 8)):
            self.add()

    def raise_error(self) -> None:
        number = self._random.randrange(1000)
        outcome = self._session.run(f"{_adding(number)}\nraise ValueError({number})")
        _expect(isinstance(outcome, Raised) and outcome.state == "kept", outcome)
        self._model.cell().add(number)

    def write_step(self) -> None:
        name, text = f"file{self._random.randrange(3)}", "x" * self._random.randrange(5000)
        self._ran(f"with open({name!r}, 'w') as file: _ = file.write({text!r})")
        self._model.cell().files[name] = text.encode()

    def remove(self) -> None:
        files = sorted(name for name in self._model.state.files if name != "log")
        if files:
            name = self._random.choice(files)
            self._ran(f"os.unlink({name!r})")
            del self._model.cell().files[name]

    def set(self) -> None:
        name, number = f"given{self._random.randrange(3)}", self._random.randrange(1000)
        value: object = self._random.choice([number, "x" * number, {"n": [number]}])
        self._session.set(name, value)  # type: ignore[arg-type]
        self._model.assign(name, value)

    def set_much(self) -> None:
        value = self._random.choice("abc") * 300_000
        self._session.set("given0", value)
        self._model.assign("given0", value)

    def put(self) -> None:
        name, data = f"file{self._random.randrange(3)}", self._random.randbytes(100)
        self._session.files.put(name, data)
        self._model.state.files[name] = data

    def interrupted(self) -> None:
        # Separately, because the interrupt may arrive before the first line of its cell.
        self.add()
        for _ in range(_LATE_AT_MOST):
            outcome = self._session.run("while True: pass", timeout=0.02)
            _expect(isinstance(outcome, TimedOut), outcome)
            if outcome.state == "kept":
                self._model.cell()
                return
            # A machine with much to do gave the worker no time in which to be interrupted.
            _expect(outcome.state == "rolled_back" and not _cells_lost(outcome), outcome)
            self._figures.late()
        raise Unlike(f"{_LATE_AT_MOST} interrupts in a row came to nothing")

    def leave_child(self) -> None:
        self._ran(f"child = subprocess.Popen([sys.executable, '-c', {LEFT!r}])")
        self._model.cell()

    def die(self) -> None:
        before = time.perf_counter()
        outcome = self._session.run(HARM + self._random.choice(DEATHS))
        self._figures.recovery(time.perf_counter() - before)
        self._killed(outcome)

    def time_out(self) -> None:
        # Long enough for the first line of the cell, on a loaded machine too.
        for timeout in (0.2, 2.0, 20.0):
            outcome = self._session.run(STUBBORN, timeout=timeout)
            if outcome.state != "kept":
                break
            self._model.cell()
        _expect(isinstance(outcome, TimedOut) and outcome.state == "rolled_back", outcome)
        _expect(not _cells_lost(outcome), outcome)
        self._figures.kill()

    def shot(self) -> None:
        """SIGKILL from outside, while a cell runs."""
        shots: list[float] = []

        def shoot(stream: str, text: str) -> None:
            if not shots:
                shots.append(time.perf_counter())
                os.kill(self.worker, signal.SIGKILL)

        outcome = self._session.run(f"{HARM}print('x')\nwhile True: pass", on_output=shoot)
        self._figures.recovery(time.perf_counter() - shots[0])
        self._killed(outcome)

    def shot_at_rest(self) -> None:
        """SIGKILL after the snapshot was taken, before the worker receives a message."""
        self._session.get("total")
        self._shoot()

    def shot_amid(self) -> None:
        """SIGKILL as soon as a cell has been answered: what is lost, is named."""
        self.add()
        time.sleep(self._random.random() * 0.004)
        self._shoot()
        self._shot_cells_ago = 0
        outcome = self._session.run("0")
        if lost := _cells_lost(outcome):
            _expect(lost == 1, outcome)
            self._model.lose()
        if isinstance(outcome, Finished):
            self._model.cell()
        else:
            # A snapshot in progress still had the socket, so the death came after the request.
            _expect(isinstance(outcome, Killed) and outcome.state == "rolled_back", outcome)

    def _shoot(self) -> None:
        end = os.pidfd_open(self.worker)
        os.kill(self.worker, signal.SIGKILL)
        select.select([end], [], [])  # until its socket is closed as well
        os.close(end)
        self._figures.kill()

    def roll_back(self) -> None:
        cells = self._random.randrange(1, self._model.history + 2)
        if not self._model.can_go_back(cells) or cells > self._model.history:
            with suppress(SandboxError, ValueError):
                self._session.rollback(cells)
                raise Unlike("went back to a state that was not kept")
            return
        before = time.perf_counter()
        try:
            self._session.rollback(cells)
        except SandboxError:
            # Killed while one snapshot replaced another: for microseconds there is neither.
            if self._shot_cells_ago >= _LONG_AGO:
                raise
            self._figures.shallow()
            return
        self._figures.recovery(time.perf_counter() - before)
        self._model.go_back(cells)
        if not self._model.cells:
            self._ran(self._setup)
            self._fresh(self._model.cell())

    # ── what must be ──────────────────────────────────────────────────────────────────────────

    def _ran(self, code: str) -> None:
        outcome = self._session.run(code)
        _expect(isinstance(outcome, Finished), outcome)
        _expect(not _cells_lost(outcome), outcome)

    def _killed(self, outcome: AnyOutcome) -> None:
        _expect(isinstance(outcome, Killed) and outcome.state == "rolled_back", outcome)
        _expect(not _cells_lost(outcome), outcome)
        self._figures.kill()

    def _compare(self) -> None:
        state = self._model.state
        names = [v.name for v in self._session.variables()]
        held = {name: self._session.get(name) for name in names if name in _COMPARED}
        if found := difference(held, state.variables):
            raise Unlike(found)
        listed = self._session.files.list()
        files = {entry.path: self._session.files.get(entry.path) for entry in listed}
        if found := difference(files, state.files):
            raise Unlike(found)


_COMPARED = {"total", "items", *(f"given{n}" for n in range(3))}


def _adding(number: int) -> str:
    return (
        f"total += {number}; items.append({number}); items = items[-{KEPT_ITEMS}:]\n"
        f"_ = log.write('{number}\\n'), log.flush()"
    )


def _expect(claim: bool, outcome: AnyOutcome) -> None:
    if not claim:
        raise Unlike(f"came to {outcome!r:.1500}")


def _cells_lost(outcome: AnyOutcome) -> int:
    """The number of cells that the outcome reports as lost."""
    found = [_CELLS_LOST.search(lost) for lost in outcome.lost]
    return sum(int(each[2]) - int(each[1]) + 1 for each in found if each)


_Act = Callable[[Soaked], None]
# Each action with its frequency, out of about a hundred.
_STEPS: tuple[tuple[_Act, int], ...] = (
    (Soaked.add, 20),
    (Soaked.add_many, 5),
    (Soaked.raise_error, 5),
    (Soaked.write_step, 10),
    (Soaked.remove, 4),
    (Soaked.set, 8),
    (Soaked.set_much, 2),
    (Soaked.put, 8),
    (Soaked.interrupted, 2),
    (Soaked.leave_child, 1),
    (Soaked.die, 12),
    (Soaked.time_out, 2),
    (Soaked.shot, 4),
    (Soaked.shot_at_rest, 4),
    (Soaked.shot_amid, 4),
    (Soaked.roll_back, 8),
    (Soaked.reopen, 1),
)

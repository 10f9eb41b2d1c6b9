"""Cost of a snapshot of the worker after each cell, and the time that a rollback takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from repl_sandbox import Sandbox, Session
from repl_sandbox.types import Killed

from .cells import finished, one_core
from .figure import ROOMY, Figure
from .samples import Samples, interleave, timed
from .work import DIE, FORK, STEP

_BATCH = 100
# Seconds. As short as a model's turn never is; the copy is made meanwhile.
_PAUSE = 0.01
_FORK_IS = "fork, exit and wait in the session"


def recovery() -> Iterator[Figure]:
    """From a cell that ends its process to its outcome, which the session as it was follows."""
    yield _recovery("recovery", "recovery of a small session", 0, 40)
    yield _recovery("recovery_1gb", "recovery of a session with 1 GB", 1_000_000_000, 15)


def _recovery(key: str, name: str, size: int, rounds: int) -> Figure:
    with Sandbox(limits=ROOMY) as sandbox, sandbox.session() as session:
        finished(session.run(f"import os, time\ndata = b'x' * {size}"))
        tasks = {"ours": lambda: _die(session, size), "floor": lambda: _fork(session)}
        taken = interleave(tasks, rounds)
    return Figure(key, name, "ms", taken["ours"], taken["floor"], _FORK_IS)


def _die(session: Session, size: int) -> float:
    time.sleep(_PAUSE)
    start = time.perf_counter()
    outcome = session.run(DIE)
    seconds = time.perf_counter() - start
    if not isinstance(outcome, Killed) or outcome.state != "rolled_back":
        raise RuntimeError(f"a cell that dies came to {outcome!r}")
    if session.run("len(data)").value != str(size):
        raise RuntimeError("the session is not what it was")
    return seconds


def _fork(session: Session) -> float:
    return float(str(session.run(FORK).value))


def copies() -> Iterator[Figure]:
    """`x = 1` in a session whose every cell is followed by a copy, against one without copies."""
    with _sessions() as (kept, plain):
        taken = interleave({"ours": lambda: _paused(kept), "floor": lambda: _paused(plain)}, 20)
        pair = (taken["ours"], taken["floor"], 'the same, recovery="restart"')
        yield Figure("step_paused", "step x = 1 after 10 ms, with recovery", "us", *pair)
        yield Figure("step_paused_more", "the same: what is on top", "us", *pair)
        yield _added("step_copied", "what recovery adds to a step at once", kept, plain)
    with one_core(), _sessions() as (kept, plain):
        yield _added("step_copied_1", "the same, on one core", kept, plain)


@contextmanager
def _sessions() -> Iterator[tuple[Session, Session]]:
    """One with recovery and one without."""
    with (
        Sandbox(limits=ROOMY) as snapshot,
        Sandbox(limits=ROOMY, recovery="restart") as restart,
        snapshot.session() as kept,
        restart.session() as plain,
    ):
        for session in (kept, plain):
            finished(session.run("import os, time"))
        yield kept, plain


def _paused(session: Session) -> float:
    return statistics.median(_after_a_pause(session) for _ in range(20))


def _after_a_pause(session: Session) -> float:
    time.sleep(_PAUSE)
    return timed(lambda: finished(session.run(STEP)))


def _added(key: str, name: str, kept: Session, plain: Session) -> Figure:
    taken = interleave(
        {
            "kept": lambda: _at_once(kept),
            "plain": lambda: _at_once(plain),
            "floor": lambda: _fork(kept),
        },
        rounds=30,
    )
    pairs = zip(taken["kept"].values, taken["plain"].values, strict=True)
    added = Samples(tuple(with_copies - without for with_copies, without in pairs))
    return Figure(key, name, "us", added, taken["floor"], _FORK_IS)


def _at_once(session: Session) -> float:
    return statistics.median(timed(lambda: finished(session.run(STEP))) for _ in range(_BATCH))

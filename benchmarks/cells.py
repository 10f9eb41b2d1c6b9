"""Cost of a cell: a step, much output, a large context, plain computing."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from repl_env import LocalREPLEnv
from repl_sandbox import Sandbox, Session
from repl_sandbox.types import AnyOutcome, Finished

from . import bare_fork
from .figure import ROOMY, Figure
from .samples import Samples, Timed, interleave, timed
from .work import STEP, SYSCALL, SYSCALLS, TEXT_LINE

BATCH = 100  # steps per sample, so that caches are warm for whoever's turn it is


def step() -> Iterator[Figure]:
    """`x = 1` at the engine and at the environment, everything on one core.

    On two cores the wake-up of an idle one takes longer than the step itself, on both sides; on
    one core the difference between ours and the floor is the code's.
    """
    with (
        one_core(),
        bare_fork.Parent() as parent,
        Sandbox(limits=ROOMY, recovery="restart") as sandbox,
    ):
        pipes = parent.pipes()
        with sandbox.session() as session, LocalREPLEnv(sandbox=sandbox) as env:
            env.reset(max_iterations=10**9)
            tasks: dict[str, Timed] = {
                "engine": lambda: _batch(lambda: finished(session.run(STEP))),
                "environment": lambda: _batch(lambda: env.execute(STEP)),
                "floor": lambda: _batch(lambda: pipes.step(STEP.encode())),
            }
            taken = interleave(tasks, rounds=30)
        pipes.close()
    floor_is = "pipe round trip + compile + exec"
    yield Figure("step", "step x = 1, no recovery", "us", taken["engine"], taken["floor"], floor_is)
    yield Figure(
        "step_env",
        "LocalREPLEnv.execute('x = 1'), no recovery",
        "us",
        taken["environment"],
        taken["floor"],
        floor_is,
    )


def syscall() -> Iterator[Figure]:
    """One system call from Python: under both filters in the namespaces, and without any."""
    with Sandbox(limits=ROOMY) as sandbox, bare_fork.Parent() as parent:
        session, child = sandbox.session(), parent.session()
        taken = interleave(
            {
                "ours": lambda: _a_call(str(session.run(SYSCALL).value)),
                "floor": lambda: _a_call(child.run(SYSCALL)),
            },
            rounds=30,
        )
        session.close()
        child.close()
    yield Figure(
        "syscall", "one system call", "ns", taken["ours"], taken["floor"], "the same without jail"
    )


def _a_call(times: str) -> float:
    begin, end = ast.literal_eval(times)
    return float(end - begin) / SYSCALLS


def stdout() -> Iterator[Figure]:
    """One print of 1 MB: captured from descriptor 1 of the session, against a StringIO."""
    taken = _alone("print", processes=4, rounds=12)
    name, floor_is = "1 MB stdout, no recovery", "in-process capture"
    yield Figure("stdout", name, "ms", taken["session"], taken["plain"], floor_is)


def _alone(cell: str, *, processes: int, rounds: int) -> dict[str, Samples]:
    """Times of a cell in so many processes each, sessions and plain ones in turn."""
    taken: dict[str, list[float]] = {"session": [], "plain": []}
    for _ in range(processes):
        for where, values in taken.items():
            program = [sys.executable, "-m", "benchmarks.alone", where, cell, str(rounds)]
            printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
            values += json.loads(printed)
    return {where: Samples(tuple(values)) for where, values in taken.items()}


def context() -> Iterator[Figure]:
    """A text made a variable of a session, against memfd, mmap and decoding in a forked child."""
    for megabytes, rounds in ((10, 20), (100, 8)):
        text = TEXT_LINE * (megabytes * 1_000_000 // len(TEXT_LINE))
        sandbox = Sandbox(limits=ROOMY, recovery="restart")
        with sandbox, bare_fork.Parent() as parent:
            session, child = sandbox.session(), parent.session()
            tasks: dict[str, Timed] = {
                "ours": partial(timed, partial(_give, session, text)),
                "floor": partial(timed, partial(child.put, text.encode())),
            }
            taken = interleave(tasks, rounds=rounds, warm_up=1)
            session.close()
            child.close()
        yield Figure(
            f"context_{megabytes}",
            f"{megabytes} MB context, no recovery",
            "ms",
            taken["ours"],
            taken["floor"],
            "memfd + mmap + decode",
        )


def cpu() -> Iterator[Figure]:
    """A loop of two million additions: in a session, and in a plain process."""
    taken = _alone("compute", processes=12, rounds=2)
    yield Figure("cpu", "CPU loop", "ms", taken["session"], taken["plain"], "plain CPython")


def _give(session: Session, text: str) -> None:
    """Set `text` and look at it: what is not decoded yet is not there yet."""
    session.set("context", text)
    if session.run("len(context)").value != str(len(text)):
        raise RuntimeError("the context did not arrive whole")


def finished(outcome: AnyOutcome) -> None:
    """See that a cell did what it was to do."""
    if not isinstance(outcome, Finished):
        raise RuntimeError(f"a benchmark cell came to {outcome!r}")


def _batch(action: Callable[[], object]) -> float:
    """The median of single steps: other work that takes the core in between hits only some."""
    return statistics.median(timed(action) for _ in range(BATCH))


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and what it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)

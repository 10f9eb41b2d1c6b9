"""Cost of a session: making one, taking a ready one, closing it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from repl_sandbox import Sandbox
from repl_sandbox.types import AnyOutcome

from . import bare_fork
from .figure import Figure
from .samples import interleave, timed


def cold() -> Iterator[Figure]:
    """A new session up to its first answer."""
    yield _cold("cold", "cold session to 1+1, no recovery", ())


def cold_preloaded() -> Iterator[Figure]:
    """The same from a template that holds numpy and pandas."""
    yield _cold(
        "cold_preloaded", "cold session to 1+1, numpy + pandas, no recovery", ("numpy", "pandas")
    )


def _cold(key: str, name: str, preload: tuple[str, ...]) -> Figure:
    with (
        Sandbox(preload=preload, recovery="restart") as sandbox,
        bare_fork.Parent(preload) as parent,
    ):
        tasks = {"ours": lambda: _first_answer(sandbox), "floor": lambda: _first_fork(parent)}
        taken = interleave(tasks, rounds=80)
    return Figure(key, name, "ms", taken["ours"], taken["floor"], "bare fork to 1+1")


def _first_answer(sandbox: Sandbox) -> float:
    start = time.perf_counter()
    session = sandbox.session()
    _answers(session.run("1+1"))
    seconds = time.perf_counter() - start
    session.close()
    return seconds


def _first_fork(parent: bare_fork.Parent) -> float:
    start = time.perf_counter()
    session = parent.session()
    session.run("1+1")
    seconds = time.perf_counter() - start
    session.close()
    return seconds


def ready() -> Iterator[Figure]:
    """A session taken from a full pool of ready ones, against a child that was forked before."""
    size = 10
    with Sandbox(ready=size, recovery="restart") as sandbox, bare_fork.Parent() as parent:

        def ours() -> float:
            _wait_until(lambda: sandbox.statistics().ready >= size)
            return _first_answer(sandbox)

        def floor() -> float:
            session = parent.session()
            session.run("0")  # forked, and through its first page faults
            seconds = timed(lambda: session.run("1+1"))
            session.close()
            return seconds

        taken = interleave({"ours": ours, "floor": floor}, rounds=40)
    yield Figure(
        "ready",
        "ready session to 1+1, no recovery",
        "ms",
        taken["ours"],
        taken["floor"],
        "1+1 in a child forked before",
    )


def destroy() -> Iterator[Figure]:
    """Closing a session that has answered, until nothing of it is left to reap."""
    with Sandbox(recovery="restart") as sandbox, bare_fork.Parent() as parent:

        def ours() -> float:
            session = sandbox.session()
            _answers(session.run("1+1"))
            return timed(session.close)

        def floor() -> float:
            session = parent.session()
            session.run("1+1")
            return timed(session.close)

        taken = interleave({"ours": ours, "floor": floor}, rounds=40)
    yield Figure(
        "destroy",
        "close a session, no recovery",
        "ms",
        taken["ours"],
        taken["floor"],
        "end and reap",
    )


def _answers(outcome: AnyOutcome) -> None:
    if outcome.value != "2":
        raise RuntimeError(f"1+1 came to {outcome!r}")


def _wait_until(condition: Callable[[], bool], patience: float = 10.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("waited in vain for the pool to fill")
        time.sleep(0.002)

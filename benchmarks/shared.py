"""Cost of a context shared by many sessions, and of many environments stepped as one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from repl_env import LocalREPLEnv, REPLVectorEnv
from repl_sandbox import Limits, Sandbox, Session
from repl_sandbox.host.shared_objects import pack

from .figure import ROOMY, Figure
from .many import descendants, pss
from .samples import Samples, interleave, timed
from .work import STEP, TEXT_LINE

MANY = 64
_100_MB = 100_000_000
_TEXT = (TEXT_LINE * (_100_MB // len(TEXT_LINE) + 1))[:_100_MB]


def shared_memory() -> Iterator[Figure]:
    """PSS of everything that 64 sessions on one context of 100 MB take, both templates included.

    Needs root, as `many.memory` does.
    """
    if os.geteuid() != 0:
        print("shared memory is not measured: it needs root", file=sys.stderr)
        return
    before = descendants(os.getpid())
    with Sandbox() as sandbox, sandbox.with_shared(context=_TEXT) as shared:
        sessions = [shared.session() for _ in range(MANY)]
        for session in sessions:
            _check(session)
        ours = pss(lambda: descendants(os.getpid()) - before)
        for session in sessions:
            session.close()
    yield Figure(
        "shared_memory",
        f"memory (PSS) of {MANY} sessions on one 100 MB context",
        "MB",
        Samples((ours,)),
        Samples((float(_100_MB),)),
        "the context once",
    )


def shared_answer() -> Iterator[Figure]:
    """From asking for a session to the length of the 100 MB in it: one that was made ahead of time,
    as the next one is once two were asked for, and one that was not."""
    with (
        Sandbox() as sandbox,
        Sandbox(ready=1) as ready,
        sandbox.with_shared(context=_TEXT) as shared,
        pack({"context": _TEXT}) as parcel,
        sandbox.with_parcel(parcel) as cold,
    ):
        for _ in range(2):
            _answered(shared, "len(context)")
        taken = interleave(
            {
                "ours": lambda: _answered(shared, "len(context)"),
                "cold": lambda: _answered(cold, "len(context)"),
                "floor": lambda: _answered(ready, "1+1"),
                "cold floor": lambda: _answered(sandbox, "1+1"),
            },
            rounds=MANY,
        )
    for key, name, ours, floor, told in (
        ("shared_answer", "session", "ours", "floor", "one made ahead, no context"),
        ("shared_answer_cold", "cold session", "cold", "cold floor", "the same without a context"),
    ):
        name = f"{name} to len() of a shared 100 MB"
        yield Figure(key, name, "ms", taken[ours], taken[floor], told)


def _answered(sandbox: Sandbox, code: str) -> float:
    opened: list[Session] = []

    def answer() -> None:
        opened.append(sandbox.session())
        opened[0].run(code)

    seconds = timed(answer)
    opened[0].close()
    return seconds


def vector() -> Iterator[Figure]:
    """Steps per second of 64 environments as one, one after the other, and in one bare process."""
    # With recovery each step is followed by a fork, in a batch as in a loop: that is another row.
    with Sandbox(limits=Limits(timeout=ROOMY.timeout), recovery="restart") as sandbox:
        alone = [LocalREPLEnv(sandbox=sandbox) for _ in range(MANY)]
        for env in alone:
            env.reset(max_iterations=10**9)
        namespaces: list[dict[str, object]] = [{} for _ in range(MANY)]
        with REPLVectorEnv(MANY, sandbox=sandbox) as together:
            together.reset(max_iterations=10**9)
            taken = interleave(
                {
                    "vector": lambda: timed(lambda: together.step([STEP] * MANY)),
                    "loop": lambda: timed(lambda: [env.execute(STEP) for env in alone]),
                    "bare": lambda: timed(lambda: _bare(namespaces)),
                },
                rounds=50,
            )
        for env in alone:
            env.close()
    rates = {
        name: Samples(tuple(MANY / seconds for seconds in samples.values))
        for name, samples in taken.items()
    }
    name = f"steps per second, REPLVectorEnv({MANY}), no recovery"
    loop = f"{MANY} LocalREPLEnv in a loop"
    yield Figure("vector", f"{name}, to a loop", "/s", rates["vector"], rates["loop"], loop)
    yield Figure(
        "vector_bare",
        f"{name}, to bare exec",
        "/s",
        rates["vector"],
        rates["bare"],
        "exec in one process, no sessions",
    )


def _bare(namespaces: list[dict[str, object]]) -> None:
    for names in namespaces:
        exec(compile(STEP, "", "exec"), names)


def _check(session: Session) -> None:
    assert session.run("len(context)").value == str(_100_MB)

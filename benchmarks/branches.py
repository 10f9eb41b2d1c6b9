"""Cost of a branch of a live session: the time to make the branch, and its memory."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from repl_sandbox import Sandbox, Session

from .figure import ROOMY, Figure
from .many import descendants, pss
from .samples import Samples, interleave

_100_MB = 100_000_000
_FILL = f"import os\nbig = b'x' * {_100_MB}"
_OPEN = 64


def branch() -> Iterator[Figure]:
    """`branch()` of a session with 100 MB, beside a bare fork of as much."""
    with Sandbox(limits=ROOMY) as sandbox, sandbox.session() as session:
        session.run(_FILL)
        taken = interleave({"ours": lambda: _branch(session), "floor": lambda: _fork(session)}, 40)
    yield Figure(
        "branch",
        "branch of a session with 100 MB",
        "ms",
        taken["ours"],
        taken["floor"],
        "os.fork in such a session",
    )


def _branch(session: Session) -> float:
    start = time.perf_counter()
    branch = session.branch()
    taken = time.perf_counter() - start
    branch.close()
    return taken


def _fork(session: Session) -> float:
    gc.collect()
    start = time.perf_counter()
    session.run("pid = os.fork()\nif not pid: os._exit(0)\n_ = os.waitpid(pid, 0)")
    return time.perf_counter() - start


def branches() -> Iterator[Figure]:
    """PSS of all that a session with 100 MB and its open branches take, its template included.

    Right after they are made, and when each has run a cell and has copies of its own to go back to.
    Needs root, as `many.memory` does.
    """
    if os.geteuid() != 0:
        print("memory of branches is not measured: it needs root", file=sys.stderr)
        return
    before = descendants(os.getpid())
    limits = replace(ROOMY, processes=4 * _OPEN)
    with Sandbox(limits=limits, branches=_OPEN) as sandbox, sandbox.session() as session:
        session.run(_FILL)
        opened = [session.branch() for _ in range(_OPEN)]
        made = pss(lambda: descendants(os.getpid()) - before)
        for each in opened:
            each.run("len(big)")
        stepped = pss(lambda: descendants(os.getpid()) - before)
        for each in opened:
            each.close()
    name = f"memory (PSS) of a session with 100 MB and {_OPEN} branches"
    for key, more, ours in (
        ("branches", "", made),
        ("branches_run", ", each after a cell", stepped),
    ):
        yield Figure(
            key, name + more, "MB", Samples((ours,)), Samples((float(_100_MB),)), "the 100 MB"
        )

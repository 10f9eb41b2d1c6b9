"""What a branch of a live session costs: the time to make it, and its memory."""

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

_FILL = "import os\nbig = b'x' * (100 << 20)"
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
    """PSS of a session with 100 MB and of its open branches; needs root, as `many.memory`."""
    if os.geteuid() != 0:
        print("memory of branches is not measured: it needs root", file=sys.stderr)
        return
    limits = replace(ROOMY, processes=4 * _OPEN)
    with Sandbox(limits=limits, branches=_OPEN) as sandbox:
        before = descendants(os.getpid())
        with sandbox.session() as session:
            session.run(_FILL)
            alone = pss(descendants(os.getpid()) - before)
            opened = [session.branch() for _ in range(_OPEN)]
            together = pss(descendants(os.getpid()) - before)
            for each in opened:
                each.close()
    yield Figure(
        "branches",
        f"memory (PSS) per branch, of {_OPEN} of a session with 100 MB",
        "MB",
        Samples(((together - alone) / _OPEN,)),
        Samples((alone,)),
        "the session itself",
    )

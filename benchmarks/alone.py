"""Milliseconds of a cell, of so many in a row, in a process that does nothing else: a program.

python -m benchmarks.alone session print 12     # from a session
python -m benchmarks.alone plain compute 5      # in this process, which captures what is printed

The program prints a list as JSON. The time a process takes depends on what the process did before,
and on where its memory lies. The freed memory that the C library keeps decides whether a text of
1 MB costs 250 page faults: capturing one took 0.06 or 0.6 ms by turns in a process with sessions,
and takes 0.9 to 1.5 in a plain one, by the version of Python. The times of the same loop in
different processes differ by up to a tenth.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from repl_sandbox import Sandbox

from .cells import finished
from .figure import ROOMY
from .samples import timed
from .work import CPU_LOOP, PRINT_1_MB

_CELLS: Final[Mapping[str, str]] = {"print": PRINT_1_MB, "compute": CPU_LOOP}
_WARM_UP = 2


def main(where: str, what: str, rounds: str) -> None:
    """Measure what is asked for, and print."""
    code = _CELLS[what]
    if where == "session":
        with Sandbox(limits=ROOMY, recovery="restart") as sandbox, sandbox.session() as session:
            taken = _taken(lambda: finished(session.run(code)), int(rounds))
    else:
        taken = _taken(lambda: _captured(code), int(rounds))
    print(json.dumps(taken))


def _taken(work: Callable[[], object], rounds: int) -> list[float]:
    for _ in range(_WARM_UP):
        work()
    return [timed(work) for _ in range(rounds)]


def _captured(code: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        # As a program's: names are found later in a dictionary that has some of them already.
        exec(code, vars(ModuleType("__main__")))
    captured.getvalue()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Milliseconds of one print of 1 MB, of so many in a row: a program.

python -m benchmarks.printing session     # from a session
python -m benchmarks.printing captured    # captured in the process that prints

It prints a list as JSON. Each is in a process of its own, which does nothing else: what the C
library keeps of freed memory, and so whether such a text costs 250 page faults, depends on what a
process did before. In one with sessions, capturing took 0.06 or 0.6 ms by turns; in a plain one it
takes 0.9 to 1.5, by the version of Python.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable

from repl_sandbox import Sandbox

from .cells import finished
from .figure import ROOMY
from .samples import timed
from .work import PRINT_1_MB

_WARM_UP, _ROUNDS = 3, 12


def main() -> None:
    """Measure what is asked for, and print."""
    if sys.argv[1] == "session":
        with Sandbox(limits=ROOMY, recovery="restart") as sandbox, sandbox.session() as session:
            taken = _taken(lambda: finished(session.run(PRINT_1_MB)))
    else:
        taken = _taken(_captured)
    print(json.dumps(taken))


def _taken(work: Callable[[], object]) -> list[float]:
    for _ in range(_WARM_UP):
        work()
    return [timed(work) for _ in range(_ROUNDS)]


def _captured() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        exec(PRINT_1_MB, {})
    captured.getvalue()


if __name__ == "__main__":
    main()

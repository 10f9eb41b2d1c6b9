"""Milliseconds of one print of 1 MB, from a session and captured in this process: a program.

python -m benchmarks.printing

It prints both lists as JSON. In a process of its own, because what the C library keeps of freed
memory, and so whether such a text costs 250 page faults, depends on what a process did before.
"""

from __future__ import annotations

import contextlib
import io
import json

from repl_sandbox import Sandbox

from .cells import finished
from .figure import ROOMY
from .samples import interleave, timed
from .work import PRINT_1_MB

_ROUNDS = 40


def main() -> None:
    """Measure and print."""
    with Sandbox(limits=ROOMY, recovery="restart") as sandbox, sandbox.session() as session:
        taken = interleave(
            {
                "ours": lambda: timed(lambda: finished(session.run(PRINT_1_MB))),
                "floor": lambda: timed(_captured),
            },
            rounds=_ROUNDS,
        )
    print(json.dumps({name: samples.values for name, samples in taken.items()}))


def _captured() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        exec(PRINT_1_MB, {})
    captured.getvalue()


if __name__ == "__main__":
    main()

"""Sessions per second of one zygote or of one bare-fork parent: a program that prints the number.

python -m benchmarks.rate ours|bare SECONDS
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

from repl_sandbox import Sandbox

from . import bare_fork


def main(kind: str, seconds: float) -> None:
    """Open, ask and close sessions one after the other for `seconds`."""
    if kind == "ours":
        with Sandbox(recovery="restart") as sandbox:
            print(_per_second(lambda: _ours(sandbox), seconds))
    else:
        with bare_fork.Parent() as parent:
            print(_per_second(lambda: _bare(parent), seconds))


def _per_second(cycle: Callable[[], None], seconds: float) -> float:
    cycle()  # the first one pays for what is loaded once
    count, start = 0, perf_counter()
    while (elapsed := perf_counter() - start) < seconds:
        cycle()
        count += 1
    return count / elapsed


def _ours(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        if session.run("1+1").value != "2":
            raise RuntimeError("1+1 is not 2")


def _bare(parent: bare_fork.Parent) -> None:
    session = parent.session()
    session.run("1+1")
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

"""Sessions per second of one zygote or of one bare-fork parent: a program that prints the number.

python -m benchmarks.rate ours|bare

It says "ready" when one session was there and is gone, and then measures for as many seconds as
each line on its standard input says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

from repl_sandbox import Sandbox

from . import bare_fork


def main(kind: str) -> None:
    """Open, ask and close sessions one after the other, for as long as is said."""
    if kind == "ours":
        with Sandbox(recovery="restart") as sandbox:
            _serve(lambda: _ours(sandbox))
    else:
        with bare_fork.Parent() as parent:
            _serve(lambda: _bare(parent))


def _serve(cycle: Callable[[], None]) -> None:
    cycle()  # the first one pays for what is loaded once
    print("ready", flush=True)
    for seconds in sys.stdin:
        print(_per_second(cycle, float(seconds)), flush=True)


def _per_second(cycle: Callable[[], None], seconds: float) -> float:
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
    main(sys.argv[1])

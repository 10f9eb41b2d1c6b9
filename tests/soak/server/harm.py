"""What abuse of each kind does to others: `python -m tests.soak.server.harm`.

    python -m tests.soak.server.harm [--rounds N] [--seconds N] [--abusers N] [OPTIONS OF SERVE]

In each round the measured clients are alone for a while, and then beside each kind in turn, so that
what the machine is busy with otherwise is in all of them. Prints, for each kind, how much longer
steps took than alone, as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from .kinds import KINDS
from .served import Served

_PROBES = 4
# Seconds for which abusers have gone on before others are measured: so long is nobody told apart.
_SETTLED = 3.0
ALONE = "alone"


def measured(served: Served, kind: str, abusers: int, seconds: float) -> dict[str, float]:
    """What the measured clients see beside so many abusers of `kind`."""
    with ExitStack() as ending:
        if kind != ALONE:
            abuse = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.soak.server.kinds"),
                    served.url,
                    kind,
                    str(abusers),
                ],
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            ending.callback(abuse.wait)
            ending.callback(abuse.kill)
            assert abuse.stdout is not None
            ending.enter_context(abuse.stdout)
            if not abuse.stdout.readline():
                raise RuntimeError(f"{kind}: the abusers have ended")
            time.sleep(_SETTLED)
        told = subprocess.run(
            [
                *(sys.executable, "-m", "tests.soak.server.probe"),
                *(served.url, str(_PROBES), str(seconds)),
            ],
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
        )
    served.settled()
    return dict(json.loads(told.stdout))


def harm(
    served: Served, *, rounds: int, seconds: float, abusers: int, kinds: Sequence[str] = KINDS
) -> dict[str, Any]:
    """Milliseconds of a step and their ratio to those of the same round alone, by kind: medians."""
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in (ALONE, *kinds)}
    for _ in range(rounds):
        for kind, figures in seen.items():
            figures.append(measured(served, kind, abusers, seconds))
            print(kind, figures[-1], file=sys.stderr)

    def middle(kind: str, name: str) -> float:
        return round(median(figures[name] for figures in seen[kind]), 1)

    def ratio(kind: str, name: str) -> float:
        pairs = zip(seen[kind], seen[ALONE], strict=True)
        return round(median(beside[name] / alone[name] for beside, alone in pairs), 2)

    return {
        kind: {
            **{name: middle(kind, name) for name in ("p50 ms", "p99 ms")},
            **{f"{name[:3]} ratio": ratio(kind, name) for name in ("p50 ms", "p99 ms")},
        }
        for kind in seen
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.server.harm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--abusers", type=int, default=20)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    options, more = parser.parse_known_args(arguments)
    served = Served(("--grace", "1", "--memory", "256MiB", *more))
    with served:
        told = harm(
            served,
            rounds=options.rounds,
            seconds=options.seconds,
            abusers=options.abusers,
            kinds=options.kinds,
        )
    print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

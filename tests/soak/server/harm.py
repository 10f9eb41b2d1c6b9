"""Measure the harm that each kind of abuse does to others: `python -m tests.soak.server.harm`.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

from .kinds import KINDS
from .server_process import Served

_PROBES = 4
# Seconds of abuse before others are measured, until sessions are distinguished by their usage.
_SETTLED = 3.0
ALONE = "alone"


def measured(served: Served, kind: str, abusers: int, seconds: float) -> dict[str, float]:
    """Return the figures of the measured clients beside that many abusers of `kind`."""
    with _beside(served, kind, abusers) if kind != ALONE else nullcontext():
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


@contextmanager
def _beside(served: Served, kind: str, abusers: int) -> Iterator[None]:
    """Abuse the server for the block. RuntimeError if it did not take place."""
    command = [sys.executable, "-m", "tests.soak.server.kinds", served.url, kind, str(abusers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as abuse:
        assert abuse.stdout is not None
        try:
            if not abuse.stdout.readline():
                raise RuntimeError(f"{kind}: the abusers have ended")
            time.sleep(_SETTLED)
            yield
            abuse.terminate()
            if not int(abuse.stdout.readline() or 0):
                raise RuntimeError(f"{kind}: it never took place")
        finally:
            abuse.kill()


def harm(
    served: Served, *, rounds: int, seconds: float, abusers: int, kinds: Sequence[str] = KINDS
) -> dict[str, Any]:
    """Milliseconds of a step and their ratio to those of the same round alone, by kind: medians.

    "failed" counts the rounds in which clients got no answer, or sessions did not end.
    """
    seen: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        alone = measured(served, ALONE, abusers, seconds)
        for kind, pairs in seen.items():
            try:
                beside = measured(served, kind, abusers, seconds)
            except (subprocess.CalledProcessError, TimeoutError, RuntimeError) as error:
                print(f"{kind}: {error!s:.200}", file=sys.stderr)
                continue
            pairs.append((alone, beside))
            print(kind, {"alone": alone, "beside": beside}, file=sys.stderr)
    return {kind: _told(pairs, rounds) for kind, pairs in seen.items()}


def _told(pairs: Sequence[tuple[dict[str, float], dict[str, float]]], rounds: int) -> Any:
    told: dict[str, float] = {"failed": rounds - len(pairs)}
    for name in ("p50 ms", "p99 ms") if pairs else ():
        told[f"{name} alone"] = round(median(alone[name] for alone, _ in pairs), 1)
        told[name] = round(median(beside[name] for _, beside in pairs), 1)
        ratios = (beside[name] / alone[name] for alone, beside in pairs)
        told[f"{name[:3]} ratio"] = round(median(ratios), 2)
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.server.harm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--abusers", type=int, default=20)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    options, more = parser.parse_known_args(arguments)
    served = Served(("--grace", "1", "--memory", "256MiB", *more), keyed=True)
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

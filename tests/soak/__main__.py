"""`make soak`: sessions that lose their workers all the time, and nothing else.

python -m tests.soak [--seconds N] [--sessions N] [--tier NAME...] [--seed N]

Prints its figures; exit status 1 if a session was not what it had to be, or something is left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from tests.security.abuse.interpreters import open_to_all

from .soak import TIERS, Plan, soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak each tier for its share of the time; 0 if all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--tier", nargs="+", choices=TIERS, default=list(TIERS))
    parser.add_argument("--seed", default=str(time.time_ns()))
    options = parser.parse_args(arguments)
    bad = 0
    for tier in options.tier:
        plan = Plan(
            tier=tier,
            python=None if tier == "jailed" else open_to_all(),
            seconds=options.seconds / len(options.tier),
            sessions=options.sessions,
            seed=options.seed,
        )
        report = soak(plan)
        print(json.dumps({"tier": tier, "seed": options.seed, **report.told()}, indent=2))
        bad += len(report.faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

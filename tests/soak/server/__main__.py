"""`make soak-server`: a server under mixed load, beside abuse, and how it ends.

    python -m tests.soak.server [--seconds N] [--guests N] [--abusers N] [--seed N]

Prints its figures, and how much longer steps took beside abuse of each kind than alone (harm.py,
which says more of it). Exit status 1 if a client got what it should not, something is left, or the
abusers were felt by the others.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence

from .harm import harm
from .kinds import CONNECTIONS, LISTING, SMALL_FRAMES
from .server_process import Served
from .soak import OPTIONS, Load, soak

_ROUNDS = 3
# Times that the slowest steps of others may take beside these kinds, against those alone.
_MOST, _BOUNDED = 5.0, (*CONNECTIONS, LISTING, SMALL_FRAMES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak for so long; 0 if all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.server", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--guests", type=int, default=24)
    parser.add_argument("--abusers", type=int, default=20)
    parser.add_argument("--seed", default=str(time.time_ns()))
    options = parser.parse_args(arguments)
    load = Load(
        seconds=options.seconds,
        guests=options.guests,
        abusers=options.abusers,
        seed=options.seed,
    )
    report = soak(load)
    if report.harm is not None:
        report.faults.append(report.harm)
    print(json.dumps({"seed": options.seed, **report.told()}, indent=2), flush=True)
    # A hundredth of the time for each kind and round.
    with Served(OPTIONS, keyed=True) as served:
        kinds = harm(served, rounds=_ROUNDS, seconds=options.seconds / 100, abusers=options.abusers)
    print(json.dumps({"by kind": kinds}, indent=2))
    felt = [kind for kind in _BOUNDED if kinds[kind].get("p99 ratio", math.inf) > _MOST]
    if felt:
        print(f"p99 of others over {_MOST:g} times as long: {', '.join(felt)}")
    missed = [kind for kind, told in kinds.items() if told["failed"] == _ROUNDS]
    if missed:
        print(f"never measured, see above: {', '.join(missed)}")
    return 1 if report.faults or felt or missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.security.abuse`: the corpus of abuse, run for real. See `make test-security`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from .case import FILES
from .run import Report, run
from .table import render
from .tiers import TIERS


def main() -> int:
    """Run what the arguments ask for; 0 if nothing failed and the host is as it was."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.abuse", description=__doc__)
    parser.add_argument("--corpus", type=Path, action="append", help="a file of cases; default all")
    parser.add_argument("--tier", choices=TIERS, action="append", help="default: four of them")
    parser.add_argument("--user", choices=("root", "user", "ordinary"), action="append")
    parser.add_argument("--only", default="", help="cases whose id begins with this")
    parser.add_argument("--without", action="append", default=[], help="a group to leave out")
    parser.add_argument("--json", action="store_true", help="the verdicts, one document")
    parser.add_argument("--sessions", type=int, default=4, help="cases at once")
    asked = parser.parse_args()
    report = run(
        [path.resolve() for path in asked.corpus or FILES],
        asked.tier or ["jailed", "confined", "process", "policy"],
        users=asked.user or ["root", "user", "ordinary"],
        size=asked.sessions,
        only=asked.only,
        without=asked.without,
    )
    print(_json(report) if asked.json else _text(report))
    return 0 if report.ok else 1


def _json(report: Report) -> str:
    columns = [
        {"identity": identity, "tier": tier, "verdicts": [asdict(verdict) for verdict in verdicts]}
        for (identity, tier), verdicts in report.columns.items()
    ]
    return json.dumps({"columns": columns, "changed": report.changed})


def _text(report: Report) -> str:
    changed = [f"HOST CHANGED: {change}" for change in report.changed]
    return "\n".join([render(report.columns), *(changed or ["the host is as it was"])])


if __name__ == "__main__":
    sys.exit(main())

"""The checks on this system: `python -m tests.conformance [--json] [--isolation TIER]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from repl_sandbox.errors import SandboxError
from repl_sandbox.sandbox import Sandbox

from .runner import Report, run


def main() -> int:
    """Run all checks against a `Sandbox`; 0 if none failed, 3 if there is no such tier here."""
    parser = argparse.ArgumentParser("python -m tests.conformance", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--isolation", default="auto", help="the tier to check; default: the best")
    parser.add_argument(
        "--python", help="the interpreter of the sessions, which their users must be able to read"
    )
    parser.add_argument("--image", help="the image of the container, for tier container")
    asked = parser.parse_args()
    try:
        sandbox = Sandbox(isolation=asked.isolation, python=asked.python, image=asked.image)
    except (SandboxError, ValueError) as error:
        print(error, file=sys.stderr)
        return 3
    with sandbox:
        report = run(sandbox.session)
    print(json.dumps(dataclasses.asdict(report), indent=1) if asked.json else _table(report))
    return 0 if report.ok else 1


def _table(report: Report) -> str:
    lines = [f"tier {report.tier}: {', '.join(report.layers)}", ""]
    for result in report.results:
        lines.append(f"{result.status:14} {result.group:10} {result.name}")
        if result.detail:
            lines.append(f"{'':26}{result.detail}")
    counts = [
        f"{sum(result.status == status for result in report.results)} {status}"
        for status in ("passed", "failed", "skipped", "not applicable")
    ]
    return "\n".join([*lines, "", ", ".join(counts)])


if __name__ == "__main__":
    sys.exit(main())

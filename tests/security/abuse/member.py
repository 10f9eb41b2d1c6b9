"""A supervisor that runs cases one after the other: `python -m abuse.member TIER PID [PYTHON]`.

Reads a case a line and writes a verdict a line. It has the secrets in its environment and the
inheritable descriptors open when it starts sandboxes, as a careless host has.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from repl_sandbox import Sandbox

from . import fixtures, processes
from .case import parse
from .judge import judge
from .tiers import Unavailable, open_sandbox


def main(tier: str, sentinel: int, python: str | None = None) -> None:
    """Serve until end of file; the last line says what was left behind."""
    with fixtures.leaky_descriptors():
        try:
            sandbox = open_sandbox(tier, python)
        except Unavailable as error:
            _say({"unavailable": str(error)})
            return
        with sandbox:
            _warm(sandbox)
            held = _held(sandbox)
            _serve(tier, sandbox, sentinel)
            left = [
                f"{what}: {held[what]} before, {count} after"
                for what, count in _held(sandbox).items()
                if count != held[what]
            ]
        _say({"left": left})


def _warm(sandbox: Sandbox) -> None:
    """What a first session makes once, such as the watchdog, is no leak of a case."""
    with sandbox.session(host={"f": int}) as session:
        session.run("f()")
        _say({"tier": session.isolation.tier})


def _held(sandbox: Sandbox) -> dict[str, int]:
    zygote = sandbox._zygote.pid
    return {
        "descriptors of the host": processes.descriptors("self"),
        "descriptors of the zygote": processes.descriptors(zygote),
        "sessions": len(processes.descendants(zygote)),
    }


def _serve(tier: str, sandbox: Sandbox, sentinel: int) -> None:
    for line in sys.stdin:
        _say(asdict(judge(parse(json.loads(line)), tier, sandbox, sentinel)))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

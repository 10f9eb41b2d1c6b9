"""A supervisor that runs cases one after the other: `python -m abuse.member TIER PID [PYTHON]`.

Reads a case a line and writes a verdict a line. It has the secrets in its environment and the
inheritable descriptors open when it starts sandboxes, as a careless host has.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from repl_sandbox import Sandbox

from . import processes
from .case import PATIENCE, parse
from .host import fixtures
from .internals import baseline, session_links, zygote_client
from .judge import judge
from .quiet import quiet_beside
from .tiers import Unavailable, open_sandbox


def main(tier: str, sentinel: int, python: str | None = None) -> None:
    """Serve until end of file; the last line lists the leftovers."""
    with fixtures.leaky_descriptors():
        try:
            sandbox = open_sandbox(tier, python)
        except Unavailable as error:
            _say({"unavailable": str(error)})
            return
        with sandbox:
            guards = _warm(sandbox)
            _changes({"sessions": guards}, sandbox)  # its directory may still be on its way out
            held = _held(sandbox)
            _serve(tier, sandbox, sentinel)
            left = _changes(held, sandbox)
        _say({"left": left})


def _warm(sandbox: Sandbox) -> int:
    """Run a first session, so that what it creates once, such as the watchdog, is no leak of a
    case; return how many processes the template keeps.

    Where sessions have directories, a process is left that removes them once the template is gone.
    """
    with sandbox.session(host={"f": int}) as session:
        session.run("f()")
        _say({"tier": session.isolation.tier})
        return int(bool(session_links(session).folder))


def _changes(before: dict[str, int], sandbox: Sandbox) -> list[str]:
    """Return the counts above `before`, once processes that are ending have had time to go."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = _held(sandbox)
        more = [what for what, count in before.items() if now[what] > count]
        if not more or time.monotonic() > deadline:
            return [f"{what}: {before[what]} before, {now[what]} after" for what in more]
        time.sleep(0.01)


def _held(sandbox: Sandbox) -> dict[str, int]:
    first = baseline(sandbox)
    zygote = processes.here(zygote_client(sandbox).pid, first.query, apart=first.is_remote)
    return {
        "descriptors of the host": processes.descriptors("self"),
        "descriptors of the zygote": processes.descriptors(zygote),
        "sessions": len(processes.descendants(zygote)),
    }


def _serve(tier: str, sandbox: Sandbox, sentinel: int) -> None:
    with quiet_beside(sandbox) as quiet:
        for line in sys.stdin:
            _say(asdict(judge(parse(json.loads(line)), tier, sandbox, quiet, sentinel)))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

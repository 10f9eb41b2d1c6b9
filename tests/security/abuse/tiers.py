"""A sandbox of each tier that the corpus names, or the reason why there is none.

A tier that cannot be had is `Unavailable`. It is never replaced by another one: a case that passes
in a stronger tier says nothing about a weaker.
"""

from __future__ import annotations

import os
from typing import Any

from repl_sandbox import Limits, Policy, Sandbox, SandboxError

# A limit that a session reaches within a second and that leaves memory for four concurrent
# sessions. The output limit is below the `max_output` of the cases that flood.
LIMITS = Limits(
    memory="1GiB",
    processes=64,
    open_files=256,
    workspace="256MiB",
    output="1MiB",
    timeout=60,
    grace=0.5,
    host_timeout=60,
)

# As in tests/containers, of which other users of these modules have no copy.
_IMAGE = "python:3.11-slim"

# Sandbox arguments for each tier of the corpus. `policy` is a language policy on top of whatever
# isolation there is.
TIERS: dict[str, dict[str, Any]] = {
    "jailed": {"isolation": "jailed"},
    "confined": {"isolation": "confined"},
    "container": {
        "isolation": "container",
        "image": os.environ.get("REPL_TEST_IMAGE", _IMAGE),
        "runtime": os.environ.get("REPL_TEST_RUNTIME") or None,
        "per_session": False,
    },
    "process": {"isolation": "process"},
    "policy": {"policy": Policy("restricted")},
    "gvisor": {"isolation": "gvisor"},
    "vm": {"isolation": "vm"},
}
# Which tier's cases a session in a container must pass: that which holds it inside.
INSIDE = {"container": "confined"}


class Unavailable(Exception):
    """The tier is unavailable here; the text has the reason."""


def open_sandbox(tier: str, python: str | None) -> Sandbox:
    """A sandbox of exactly that tier whose sessions run under `python`, or `Unavailable`."""
    try:
        return Sandbox(limits=LIMITS, python=python, **TIERS[tier])
    except ValueError as error:
        raise Unavailable(f"this version has no such tier: {error}") from None
    except SandboxError as error:
        raise Unavailable(f"this system cannot: {error}") from None


def forbidden(tier: str, uid: int) -> str:
    """Why user `uid` must not run cases in `tier`; "" if it may."""
    if tier == "process" and uid == 0:
        return "without a wall the cases would run as root"
    return ""

"""Limits of time for tests that run while the machine may stand still for seconds."""

from __future__ import annotations

from repl_sandbox import Limits

# For sessions whose limits are not tested.
PATIENT = Limits(memory="512MiB", timeout=120.0, grace=20.0)

# For cells that have to reach some point and not end: seconds for each attempt, until one was long
# enough.
GROWING = (0.3, 3.0, 30.0)

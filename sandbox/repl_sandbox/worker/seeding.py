"""Random numbers of a session's own: its template's state is every session's."""

from __future__ import annotations

import sys


def seed(number: int | None) -> None:
    """Start `random`'s and NumPy's numbers from `number`; None: from what the system gives."""
    if number is not None or "random" in sys.modules:
        import random  # the template does without it: a fork is cheaper the less there is

        random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # NumPy takes 32 bits.
        numpy.random.seed(None if number is None else number & 0xFFFF_FFFF)

"""The range of gains, which rewards of tasks are made of."""

from __future__ import annotations

# Gains are cut to this range, so that rewards have a known one. A failed submission gets the least.
MIN_GAIN, MAX_GAIN = -1.0, 2.0


def in_gain_range(gain: float) -> float:
    """Return `gain` cut to the range of gains."""
    return max(MIN_GAIN, min(MAX_GAIN, gain)) + 0.0  # never -0.0

"""Slots of the recipe's batches: words that rows take from the zygote, or from each other."""

from __future__ import annotations

from typing import Final

from ..native.library import Slot

# Descriptors of a new session, by their numbers in the zygote.
CONTROL: Final = Slot(0)
WORKER: Final = Slot(1)
STDOUT: Final = Slot(2)
STDERR: Final = Slot(3)
MAPPED: Final = Slot(4)
WRITTEN: Final = Slot(5)  # the other end of `MAPPED`
CONTAINED: Final = Slot(6)
DONE: Final = Slot(7)
CHANNEL_INIT_END: Final = Slot(8)
CHANNEL_WORKER_END: Final = Slot(9)

WORD: Final = Slot(10)  # the word read from a pipe
OPENED: Final = Slot(11)  # the descriptor opened last
RULESET: Final = Slot(12)  # the descriptor of a Landlock ruleset
TRIAL: Final = Slot(13)  # 0 once a Landlock ruleset was seen to be in force

# For each cgroup of version 1, the descriptor to join it by.
GROUPS: Final = 16
MAX_GROUPS: Final = 16
# Two for each Landlock rule: its rights and its path's descriptor, side by side as the kernel reads
# them (struct landlock_path_beneath_attr).
RULES: Final = GROUPS + MAX_GROUPS


def group(index: int) -> Slot:
    """Return the slot of a cgroup."""
    return Slot(GROUPS + index)


def rule(index: int) -> tuple[Slot, Slot]:
    """Return the slots of a Landlock rule."""
    return Slot(RULES + 2 * index), Slot(RULES + 2 * index + 1)

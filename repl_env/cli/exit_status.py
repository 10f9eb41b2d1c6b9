"""The exit statuses of `repl-env`, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command came to. 2 and 130 are given by the argument parser and the shell."""

    OK = 0
    FAILED = 1  # or: no answer
    USAGE = 2
    TIER_UNAVAILABLE = 3
    BUDGET = 4
    INFRASTRUCTURE = 5  # the model, or a service behind it
    INTERRUPTED = 130  # 128 + SIGINT

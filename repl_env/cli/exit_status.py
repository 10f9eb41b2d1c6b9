"""The exit statuses of `repl-env`, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of a command. The argument parser gives 2, the shell 130."""

    OK = 0
    FAILED = 1  # or: no answer
    USAGE = 2
    TIER_UNAVAILABLE = 3
    BUDGET = 4
    INFRASTRUCTURE = 5  # the model, or a service behind it
    INTERRUPTED = 130  # 128 + SIGINT

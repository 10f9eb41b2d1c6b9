"""`contain`: takes the steps of a recipe in order, and stops at the first that fails.

Each step is a list of system calls, which `native/steps.c` performs in order, or a function of
Python. A step that fails aborts the recipe, because a half-built jail must not run code.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from ...native.steps import StepError, SyscallBatch
from .. import remedies
from ..landlock import ruleset
from ..session_jail import Jail
from .recipe_step import Step


def batch(jail: Jail, steps: Iterable[Step]) -> SyscallBatch:
    """Return the system calls of `steps`, all of which must be such steps."""
    rows = []
    for step in steps:
        if step.calls is None:
            raise ValueError(f"{step.name} is more than system calls")
        rows.append((step.name, step.calls(jail)))
    return SyscallBatch([("slots", (ruleset.NOT_TRIED,)), *rows])


def contain(jail: Jail, steps: Iterable[Step]) -> None:
    """Apply every step in order, or raise IsolationError naming the one that failed."""
    for is_function, group in groupby(steps, lambda step: step.function is not None):
        if is_function:
            for step in group:
                _apply(jail, step)
        else:
            _perform(jail, batch(jail, group))


def _apply(jail: Jail, step: Step) -> None:
    assert step.function is not None
    try:
        step.function(jail)
    except OSError as error:
        raise remedies.step_error(step.name, error, jail.tier) from error


def _perform(jail: Jail, calls: SyscallBatch) -> None:
    try:
        calls.run()
    except StepError as error:
        raise remedies.step_error(error.step, error, jail.tier) from error
    note_findings(jail, calls)


def note_findings(jail: Jail, calls: SyscallBatch) -> None:
    """Store the findings of a batch that has run in the jail."""
    if ruleset.was_tried(calls):
        jail.findings["landlock"] = jail.files.abi

"""Errors of a task itself, as opposed to failures of a submission."""

from __future__ import annotations

from repl_env.common.set_module import set_module
from repl_env.errors import REPLError


@set_module("repl_env.tasks")
class TaskError(REPLError):
    """A task cannot be used as it is; the message names the task and the reason."""


@set_module("repl_env.tasks")
class EvaluatorError(TaskError):
    """The evaluator of a task gave no score by its own fault; nothing was scored."""

"""Solvers: what is evaluated. A recursive language model, or any function, for baselines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import quote

from repl_env.common.argument_checks import as_path, check_callable, check_path
from repl_env.common.json_values import json_text, replace_surrogates
from repl_env.common.set_module import set_module
from repl_env.concurrency.user_functions import call_user_function
from repl_env.errors import EpisodeAborted, ModelError
from repl_env.llm.base import ChatModel, ModelFunction, as_model
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.failure_streak import FailureStreak

if TYPE_CHECKING:
    from repl_env.evaluation.dataset import EvalTask
    from repl_env.rlm.events import AnyEvent, EventHandler
    from repl_env.rlm.run_result import RLMRunResult
    from repl_sandbox.types import JSON

_LONGEST_NAME = 200  # bytes; file systems take 255

Function: TypeAlias = "Callable[[EvalTask], Any | Awaitable[Any]]"


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True)
class Solved:
    """Result of a solver: the answer as text (None without one) and as JSON value.

    `error_kind` as of a run: "llm", "sandbox" and "cancelled" are no fault of the solver's, and
    make that the task counts as not done. `error` says in words why there is no answer.
    `trajectory` is the file with the trajectory of the run, if one was written.

    Raises:
        TypeError: naming the field.
    """

    text: str | None
    value: JSON = None
    stop_reason: str | None = None
    error_kind: str | None = None
    spent: Spent = field(default_factory=Spent)
    error: str | None = None
    trajectory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        # Told to the solver that makes it: what cannot be written down would end all others.
        for name in ("text", "stop_reason", "error_kind", "error"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise TypeError(f"{name} must be a str or None, not {type(value).__name__}")
        if not isinstance(self.spent, Spent):
            raise TypeError(f"spent must be a Spent, not {type(self.spent).__name__}")
        if self.trajectory is not None:
            check_path(self.trajectory, "trajectory")


@set_module("repl_env.evaluation")
class Solver(Protocol):
    """Something that answers tasks, several at once in one event loop."""

    async def solve(self, task: EvalTask) -> Solved:
        """Answer `task`. ModelError and EpisodeAborted: there is no answer, and no score."""

    async def close(self) -> None:
        """Let go of what it holds."""


def check_solver(solver: Any) -> Solver:
    """`solver` if it is one; TypeError if not."""
    if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        hint = "FunctionSolver(function) makes one of a function, RLMSolver(model, {}) of a model"
        raise TypeError(f"solver must be a solver, not {solver!r:.80}; {hint}")
    checked: Solver = solver
    return checked


@set_module("repl_env.evaluation")
class FunctionSolver:
    """`function(task)` as a solver; a plain one runs in a thread.

    It returns a `Solved`, or the answer: text, a JSON value, None for no answer.
    """

    def __init__(self, function: Function) -> None:
        check_callable(function, "function")
        self._function = function

    async def solve(self, task: EvalTask) -> Solved:
        """Call the function.

        Raises:
            TypeError, ValueError: what it returned is no answer; and what it raises itself.
        """
        answer = await call_user_function(self._function, task)
        return answer if isinstance(answer, Solved) else answered(answer)

    async def close(self) -> None:
        """Nothing is held."""


def answered(answer: object) -> Solved:
    """An answer as a `Solved`.

    Raises:
        TypeError, ValueError: it is neither text nor a JSON value.
    """
    if answer is None:
        return Solved(None)
    if isinstance(answer, str):
        text = replace_surrogates(answer)
        return Solved(text, text)
    value = json.loads(replace_surrogates(json_text("the solver's answer", answer, any_keys=True)))
    return Solved(json.dumps(value), value)


@set_module("repl_env.evaluation")
class RLMSolver:
    """A recursive language model, made anew for each task.

    Args:
        options: those of `RLM`.
        trajectories: a folder that gets the trajectory of each run; a later one of the same task
            replaces it.
    """

    def __init__(
        self,
        model: ChatModel | ModelFunction,
        options: Mapping[str, Any],
        trajectories: str | os.PathLike[str] | None = None,
    ) -> None:
        self._model = as_model(model)
        self._options = options
        self._trajectories = None if trajectories is None else as_path(trajectories, "trajectories")

    async def solve(self, task: EvalTask) -> Solved:
        """Run it on the task's context."""
        # The runner loads the engine, which other solvers do without.
        from repl_env.rlm.rlm_runner import RLM

        options, path, streak = dict(self._options), self._trajectory(task), FailureStreak()
        options["on_event"] = _both(streak.feed, options.get("on_event"))
        if path is not None:
            path.unlink(missing_ok=True)
            options["trajectory"] = path
        run = RLM(self._model, **options)
        try:
            result = await run.arun(
                task.question, _given(task.context), expected_answer=task.answer, task=task
            )
        except (ModelError, EpisodeAborted) as error:
            error.trajectory = path  # type: ignore[union-attr]  # for the result, as `error.result`
            raise
        return Solved(
            text=result.final_answer,
            value=result.answer_value,
            stop_reason=result.stop_reason,
            error_kind=result.error_kind,
            spent=result.usage,
            error=None if result.final_answer is not None else _error(result, streak),
            trajectory=path,
        )

    def _trajectory(self, task: EvalTask) -> Path | None:
        """The file for the trajectory of `task`."""
        if self._trajectories is None:
            return None
        return self._trajectories / trajectory_name(task.id)

    async def close(self) -> None:
        """Close the models."""
        await self._model.close()
        if (sub_model := self._options.get("sub_model")) is not None:
            await sub_model.close()


def _error(result: RLMRunResult, streak: FailureStreak) -> str | None:
    """Why there is no answer: the part of the budget that ended the run, and its last errors."""
    return "; ".join(filter(None, (result.reason, str(streak)))) or None


def _both(first: EventHandler, second: EventHandler | None) -> EventHandler:
    """A handler that passes each event to both."""
    if second is None:
        return first
    also = second

    def handle(event: AnyEvent) -> None:
        first(event)
        also(event)

    return handle


def _given(context: JSON) -> str | list[Any] | dict[str, Any] | None:
    """A context as episodes take them: a bare number or truth value as its text."""
    if context is None or isinstance(context, (str, list, dict)):
        return context
    return json.dumps(context)


def trajectory_name(task: str) -> str:
    """The name of the file for the task of this id, which may be any text."""
    name = quote(task, safe=" ")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(task.encode()).hexdigest()[:16]
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    return f"{name}.jsonl"

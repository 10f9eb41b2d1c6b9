"""`REPLRubric`, the default rubric, and `CodeExecutionRubric`, its score of steps."""

from __future__ import annotations

import inspect
from typing import Any

from repl_env.common.argument_checks import finite
from repl_env.common.set_module import set_module
from repl_env.rewards.outcome_rubrics import ExactMatchRubric
from repl_env.rewards.rubric import PendingScore, Rubric, Score, is_pending


@set_module("repl_env")
class CodeExecutionRubric(Rubric):
    """A reward for each step: `success_reward` if its code ran, else `error_penalty`.

    Raises:
        TypeError, ValueError: naming the argument that is not a finite number.
    """

    def __init__(self, success_reward: float = 0.0, error_penalty: float = -0.05) -> None:
        super().__init__()
        self.success_reward = finite(success_reward, "success_reward")
        self.error_penalty = finite(error_penalty, "error_penalty")

    def forward(self, action: Any, observation: Any) -> float:
        """Return the reward of the observation's `result`; 0.0 if it has none."""
        result = getattr(observation, "result", None)
        if result is None:
            return 0.0
        return self.success_reward if result.success else self.error_penalty


@set_module("repl_env")
class REPLRubric(Rubric):
    """The default rubric: `process` scores each step, `outcome` the last one.

    An episode that ends without an answer scores `failure_reward`. A step with `error_kind`
    "format" scores `format_penalty` instead of `process`, in addition to the score of the episode's
    end. The task's own component is "outcome"; "process", "failure" and "format" are shaping.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    shaping = ("process", "failure", "format")

    def __init__(
        self,
        outcome: Rubric | None = None,
        process: Rubric | None = None,
        failure_reward: float = -0.1,
        *,
        format_penalty: float = -0.05,
    ) -> None:
        super().__init__()
        for name, part in (("outcome", outcome), ("process", process)):
            if part is not None:
                check_rubric(part, name)
        self.outcome = ExactMatchRubric() if outcome is None else outcome
        self.process = CodeExecutionRubric() if process is None else process
        self.failure_reward = finite(failure_reward, "failure_reward")
        self.format_penalty = finite(format_penalty, "format_penalty")
        self._component = "process"
        self._unpenalized: float | None = None  # the score before a penalty, if one was added

    def set_expected(self, expected: Any) -> None:
        """Pass the expected answer to the outcome rubric, if it accepts one."""
        take = getattr(self.outcome, "set_expected", None)
        if take is not None:
            take(expected)

    def reset(self) -> None:
        """Forget the last episode, here and in both parts, which may come from another library."""
        self.last_score = None
        self.outcome.reset()
        self.process.reset()

    def components(self) -> dict[str, float]:
        """The last score, by the names of its parts."""
        if self.last_score is None:
            return {}
        if self._unpenalized is None:
            return {self._component: self.last_score}
        return {self._component: self._unpenalized, "format": self.format_penalty}

    def forward(self, action: Any, observation: Any) -> Score:
        """Return the score of the part that this step is for, with the penalty for a wrong
        format.
        """
        self._unpenalized = None
        misformatted = observation.metadata.get("error_kind") == "format"
        if misformatted and not observation.done:
            self._component = "format"
            return self.format_penalty
        score = self._component_score(action, observation)
        if not misformatted:
            return score
        return PendingScore(score, self._penalized) if is_pending(score) else self._penalized(score)

    def _penalized(self, score: Any) -> float:
        self._unpenalized = float(score)
        return self._unpenalized + self.format_penalty

    def _component_score(self, action: Any, observation: Any) -> Score:
        if not observation.done:
            self._component = "process"
            process: Score = self.process(action, observation)
            return process
        if observation.metadata.get("final_answer") is None:
            self._component = "failure"
            return self.failure_reward
        self._component = "outcome"
        outcome: Score = self.outcome(action, observation)
        return outcome


def check_rubric(value: Any, name: str) -> None:
    """Raise TypeError naming the argument, unless `value` is a rubric of this package or
    another.
    """
    if isinstance(value, type) or not (callable(value) and hasattr(value, "reset")):
        kind = getattr(value, "__name__", repr(value))
        hint = "CustomMetricRubric(function) makes one of a function"
        raise TypeError(f"{name} must be a rubric, as ExactMatchRubric() is, not {kind}; {hint}")


# Rubrics known to return at once. Others are the user's, or scan texts repeatedly.
_IMMEDIATE = (ExactMatchRubric, CodeExecutionRubric, REPLRubric)


def returns_at_once(rubric: Any) -> bool:
    """Return whether an event loop may call `rubric`: it is awaited, or known to return at once."""
    if type(rubric) not in _IMMEDIATE:
        return inspect.iscoroutinefunction(getattr(rubric, "forward", None))
    if rubric._hooks or rubric._pre_hooks:
        return False
    if type(rubric) is not REPLRubric:
        return True
    return returns_at_once(rubric.outcome) and returns_at_once(rubric.process)

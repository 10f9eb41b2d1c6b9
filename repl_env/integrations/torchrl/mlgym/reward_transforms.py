"""`MLGymRewardAssignment`: the reward of a step from what the evaluator gave, never from text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase

from repl_env.common.display import set_module
from repl_env.integrations.torchrl.mlgym.transform_base import MLGymBaseTransform

_NAMES = {"baseline": "baseline_score", "score": "evaluation_score"}
_FACTS = ("metric", "direction", "gain", "failure", "submitted", "improvement")


@set_module("repl_env.integrations.torchrl")
class EvaluationOutputParser:
    """Reads the facts about an evaluation, which the environment has from its evaluator.

    Returns those of `baseline_score`, `evaluation_score`, `metric`, `direction`, `gain`,
    `failure`, `submitted` and `improvement` that there are. `improvement` is how much the step
    raised the best gain of the episode.

    Raises:
        TypeError: it is given a text, which anything may have printed.
    """

    def __call__(self, evaluation: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(evaluation, Mapping):
            kind = type(evaluation).__name__
            raise TypeError(f"an evaluation is a mapping of facts, not {kind}: text has no score")
        names = {**_NAMES, **{name: name for name in _FACTS}}
        found = {new: evaluation.get(old) for old, new in names.items()}
        return {name: value for name, value in found.items() if value is not None}


@set_module("repl_env.integrations.torchrl")
class MLGymRewardAssignment(MLGymBaseTransform):
    """Adds to the reward of a step how much that step raised the best gain of the episode.

    The gain of a score is 0 for the baseline's and 1 for the reference's (docs/tasks.md), so that
    rewards of different tasks are of one size, whichever direction is better.
    """

    def __init__(self) -> None:
        super().__init__(in_keys=["reward", "evaluation"], out_keys=["reward"])
        self.parser = EvaluationOutputParser()

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        evaluation = next_tensordict["evaluation"]
        parsed = self.parser(getattr(evaluation, "data", evaluation))
        next_tensordict["reward"] = next_tensordict["reward"] + parsed.get("improvement", 0.0)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

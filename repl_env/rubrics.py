"""Rubrics, at the module path of OpenEnv's `repl_env.rubrics`."""

from repl_env.rewards.outcome_rubrics import (
    CustomMetricRubric,
    ExactMatchRubric,
    FuzzyMatchRubric,
    OutcomeRubric,
)
from repl_env.rewards.repl_rubric import CodeExecutionRubric, REPLRubric
from repl_env.rewards.rubric import Rubric

__all__ = [
    "CodeExecutionRubric",
    "CustomMetricRubric",
    "ExactMatchRubric",
    "FuzzyMatchRubric",
    "OutcomeRubric",
    "REPLRubric",
    "Rubric",
]

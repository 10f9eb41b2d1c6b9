"""Rubrics, at the module path of OpenEnv's `repl_env.rubrics`."""

from repl_env.rewards.rubric import (
    CodeExecutionRubric,
    CustomMetricRubric,
    ExactMatchRubric,
    FuzzyMatchRubric,
    OutcomeRubric,
    REPLRubric,
    Rubric,
)

__all__ = [
    "CodeExecutionRubric",
    "CustomMetricRubric",
    "ExactMatchRubric",
    "FuzzyMatchRubric",
    "OutcomeRubric",
    "REPLRubric",
    "Rubric",
]

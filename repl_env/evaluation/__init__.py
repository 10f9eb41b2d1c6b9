"""Evaluation: a solver over a dataset of questions, many at once, scored, resumable.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.evaluation.dataset import (
        RUBRICS,
        Dataset,
        DatasetError,
        EvalTask,
        FunctionSolver,
        RLMSolver,
        Solved,
        Solver,
        metric_of,
        read_dataset,
    )
    from repl_env.evaluation.evaluator import (
        Evaluation,
        RecordedResults,
        Result,
        ResultsError,
        ResultsFile,
        failure_kind,
        failures_by_kind,
        read_results,
    )
    from repl_env.evaluation.report import (
        Comparison,
        ScoreDifference,
        Summary,
        TaskChange,
        compare,
        summarize,
        summarize_results,
    )

__all__ = [
    "RUBRICS",
    "Comparison",
    "Dataset",
    "DatasetError",
    "EvalTask",
    "Evaluation",
    "FunctionSolver",
    "RLMSolver",
    "RecordedResults",
    "Result",
    "ResultsError",
    "ResultsFile",
    "ScoreDifference",
    "Solved",
    "Solver",
    "Summary",
    "TaskChange",
    "compare",
    "failure_kind",
    "failures_by_kind",
    "metric_of",
    "read_dataset",
    "read_results",
    "summarize",
    "summarize_results",
]

_NAMES_BY_MODULE = {
    "repl_env.evaluation.report": (
        "Comparison",
        "ScoreDifference",
        "Summary",
        "TaskChange",
        "compare",
        "summarize",
        "summarize_results",
    ),
    "repl_env.evaluation.dataset": (
        "Dataset",
        "DatasetError",
        "EvalTask",
        "FunctionSolver",
        "RLMSolver",
        "RUBRICS",
        "Solved",
        "Solver",
        "metric_of",
        "read_dataset",
    ),
    "repl_env.evaluation.evaluator": (
        "Evaluation",
        "RecordedResults",
        "Result",
        "ResultsError",
        "ResultsFile",
        "failure_kind",
        "failures_by_kind",
        "read_results",
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)

"""Evaluation: a solver over a dataset of questions, many at once, scored, resumable.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.evaluation.comparison import Comparison, ScoreDifference, TaskChange, compare
    from repl_env.evaluation.dataset import Dataset, DatasetError, EvalTask, read_dataset
    from repl_env.evaluation.evaluator import Evaluation
    from repl_env.evaluation.failure_kinds import failure_kind, failures_by_kind
    from repl_env.evaluation.metrics import RUBRICS, metric_of
    from repl_env.evaluation.results_file import (
        RecordedResults,
        Result,
        ResultsError,
        ResultsFile,
        read_results,
    )
    from repl_env.evaluation.solvers import FunctionSolver, RLMSolver, Solved, Solver
    from repl_env.evaluation.summary import Summary, summarize, summarize_results

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
    "repl_env.evaluation.comparison": (
        "Comparison",
        "ScoreDifference",
        "TaskChange",
        "compare",
    ),
    "repl_env.evaluation.dataset": (
        "Dataset",
        "DatasetError",
        "EvalTask",
        "read_dataset",
    ),
    "repl_env.evaluation.failure_kinds": (
        "failure_kind",
        "failures_by_kind",
    ),
    "repl_env.evaluation.evaluator": ("Evaluation",),
    "repl_env.evaluation.results_file": (
        "RecordedResults",
        "Result",
        "ResultsError",
        "ResultsFile",
        "read_results",
    ),
    "repl_env.evaluation.metrics": (
        "RUBRICS",
        "metric_of",
    ),
    "repl_env.evaluation.solvers": (
        "FunctionSolver",
        "RLMSolver",
        "Solved",
        "Solver",
    ),
    "repl_env.evaluation.summary": (
        "Summary",
        "summarize",
        "summarize_results",
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)

"""Evaluation: a solver over a dataset of questions, many at once, scored, resumable.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.evaluation.dataset import Dataset, DatasetError, EvalTask, read_dataset
    from repl_env.evaluation.evaluator import Evaluation
    from repl_env.evaluation.results import Result, ResultsError, ResultsFile
    from repl_env.evaluation.scores import RUBRICS, metric_of
    from repl_env.evaluation.solvers import FunctionSolver, RLMSolver, Solved, Solver
    from repl_env.evaluation.summary import Summary, summarize

__all__ = [
    "RUBRICS",
    "Dataset",
    "DatasetError",
    "EvalTask",
    "Evaluation",
    "FunctionSolver",
    "RLMSolver",
    "Result",
    "ResultsError",
    "ResultsFile",
    "Solved",
    "Solver",
    "Summary",
    "metric_of",
    "read_dataset",
    "summarize",
]

_NAMES_BY_MODULE = {
    "dataset": ("Dataset", "DatasetError", "EvalTask", "read_dataset"),
    "evaluator": ("Evaluation",),
    "results": ("Result", "ResultsError", "ResultsFile"),
    "scores": ("RUBRICS", "metric_of"),
    "solvers": ("FunctionSolver", "RLMSolver", "Solved", "Solver"),
    "summary": ("Summary", "summarize"),
}

__getattr__, __dir__ = on_first_use(__name__, _NAMES_BY_MODULE)

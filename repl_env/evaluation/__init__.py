"""Evaluation: a solver over a dataset of questions, many at once, scored, resumable.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl_env.evaluation.dataset import Dataset, DatasetError, EvalTask, read_dataset
    from repl_env.evaluation.evaluator import Evaluation
    from repl_env.evaluation.results import Result, ResultsError, ResultsFile
    from repl_env.evaluation.scores import RUBRICS
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
    "read_dataset",
    "summarize",
]

_NAMES_BY_MODULE = {
    "dataset": ("Dataset", "DatasetError", "EvalTask", "read_dataset"),
    "evaluator": ("Evaluation",),
    "results": ("Result", "ResultsError", "ResultsFile"),
    "scores": ("RUBRICS",),
    "solvers": ("FunctionSolver", "RLMSolver", "Solved", "Solver"),
    "summary": ("Summary", "summarize"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Results of tasks, and files of them."""

from __future__ import annotations

from pathlib import Path

from repl_env.evaluation import Result
from repl_env.evaluation.evaluator import ResultsFile
from repl_env.rlm import Spent


def result(name: str, score: float | None = 1.0) -> Result:
    return Result(
        id=name,
        fingerprint="f",
        kind=None,
        score=score,
        answer="an\nanswer",
        stop_reason="answer",
        error_kind=None,
        error=None,
        seconds=0.5,
        time=1.0,
        spent=Spent(calls=2, usd=0.25),
    )


def written(path: Path, *results: Result) -> Path:
    file = ResultsFile(path)
    file.note({"settings": {"model": "m"}})
    for each in results:
        file.append(each)
    file.close()
    return path

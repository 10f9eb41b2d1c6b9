"""Evaluations as a page shows them: results of tasks, means with intervals, comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from repl_env.display.viewer.event_rows import preview, spent_row
from repl_env.display.viewer.named_files import NamedFile
from repl_env.evaluation.comparison import TaskChange, compare
from repl_env.evaluation.confidence_intervals import interval
from repl_env.evaluation.results_file import Result, parse_results

_TEXT = 4000  # characters of a question, an answer or an error; a trajectory has them whole


def results_of(file: NamedFile) -> tuple[Result, ...]:
    """Return the last result of each task of a results file.

    Raises:
        OSError: the file cannot be read.
        ResultsError: it is no results file, or is damaged.
    """
    with file.open() as opened:
        return parse_results(opened.read(), file.path.joinpath(*file.parts)).results


def evaluation_data(results: Sequence[Result]) -> dict[str, Any]:
    """Return results as JSON."""
    kinds = sorted({result.kind for result in results if result.kind is not None})
    groups = [("all", results), *((kind, [r for r in results if r.kind == kind]) for kind in kinds)]
    return {
        "scores": [_scores(name, group) for name, group in groups],
        "tasks": [_task(result) for result in results],
    }


def comparison_data(before: Sequence[Result], after: Sequence[Result]) -> dict[str, Any]:
    """Return the comparison of two evaluations as JSON, with the answers of changed tasks."""
    found = compare(before, after)
    return {
        "differences": [asdict(each) for each in found.differences],
        "changes": [_changed(each) for each in (*found.worse, *found.better)],
        "unequal": found.unequal,
        "only_before": found.only_before,
        "only_after": found.only_after,
    }


def _changed(change: TaskChange) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    answers = {f"{name}_answer": _cut(side.answer) for name, side in sides.items()}
    scores = {name: side.score for name, side in sides.items()}
    return {"id": change.id, "kind": change.after.kind, **scores, **answers}


def _scores(name: str, results: Iterable[Result]) -> dict[str, Any]:
    scores = [result.score for result in results if result.score is not None]
    low, high = interval(scores) or (None, None)
    mean = fmean(scores) if scores else None
    return {"name": name, "n": len(scores), "mean": mean, "low": low, "high": high}


def _task(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "kind": result.kind,
        "score": result.score,
        "question": _cut(result.question),
        "expected": result.expected if len(str(result.expected)) <= _TEXT else None,
        "answer": _cut(result.answer),
        "stop_reason": preview(result.stop_reason),
        "error_kind": preview(result.error_kind),
        "error": _cut(result.error),
        "seconds": result.seconds,
        "time": result.time,
        "spent": spent_row(asdict(result.spent)),
    }


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT else text[:_TEXT] + "…"

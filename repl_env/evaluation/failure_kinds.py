"""The ways in which tasks of an evaluation failed, by name."""

from __future__ import annotations

from collections.abc import Iterable

from repl_env.common.set_module import set_module
from repl_env.evaluation.results_file import Result


@set_module("repl_env.evaluation")
def failure_kind(result: Result) -> str | None:
    """Return how the task failed; None if its score is 1 or more.

    "wrong answer" and "partly right" (a score above 0) are answers, "no answer: max_iterations"
    names what stopped a run without one, "not scored: llm" the failure that left the task without a
    score.
    """
    if result.score is None:
        return f"not scored: {result.error_kind or 'unknown'}"
    if result.score >= 1:
        return None
    if result.answer is None:
        return f"no answer: {result.error_kind or result.stop_reason or 'unknown'}"
    return "partly right" if result.score > 0 else "wrong answer"


@set_module("repl_env.evaluation")
def failures_by_kind(results: Iterable[Result]) -> dict[str, tuple[Result, ...]]:
    """Return the failed tasks by `failure_kind`, the most frequent kind first."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if (kind := failure_kind(result)) is not None:
            found.setdefault(kind, []).append(result)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {kind: tuple(failed) for kind, failed in ordered}

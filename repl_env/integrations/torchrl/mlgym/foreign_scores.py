"""The evaluation that a step gave, as facts: from our task environment, or from MLGym's `info`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from repl_env.integrations.torchrl.mlgym.mlgym_config import as_fields
from repl_env.tasks.submission import MIN_GAIN, in_gain_range


class MLGymScores:
    """The evaluations of an episode of MLGym's own environment, which keeps none.

    The scores are those of `info["score"]`, which MLGym's evaluator gave; no text is read. The
    gain of a score is its distance from the baseline in units of the baseline's size, from -1 to 2.

    Args:
        task_args: the task's arguments, with `baseline_scores`.
        direction: "maximize" or "minimize"; MLGym's tasks do not say which.
    """

    def __init__(self, task_args: Any, direction: str) -> None:
        fields = as_fields(task_args) if task_args is not None else {}
        baselines = fields.get("baseline_scores") or [{}]
        self._baseline = _numbers(baselines[-1])
        self._name = str(fields.get("id") or fields.get("name") or "")
        self._direction = direction
        self._last: dict[str, Any] = {"score": None, "gain": None, "failure": None}
        self._best = 0.0

    def evaluation(self, info: Mapping[str, Any] | None) -> dict[str, Any]:
        """The facts after a step that gave `info`; `improvement`: of the best gain, by the step."""
        improvement = 0.0
        if (scores := _numbers((info or {}).get("score"))) or "score" in (info or {}):
            improvement = self._note(scores)
        metric = self._last.get("metric") or next(iter(self._baseline), "")
        return {
            "name": self._name,
            "metric": metric,
            "direction": self._direction,
            "baseline": self._baseline.get(metric),
            **{name: self._last[name] for name in ("score", "gain", "failure")},
            "improvement": improvement,
        }

    def _note(self, scores: dict[str, float]) -> float:
        metric = next((name for name in self._baseline if name in scores), None)
        metric = metric or next(iter(scores), None)
        if metric is None:
            self._last = {"score": None, "gain": MIN_GAIN, "failure": "invalid"}
            return 0.0
        gain = self._gain(scores[metric], self._baseline.get(metric, 0.0))
        self._last = {"score": scores[metric], "gain": gain, "failure": None, "metric": metric}
        improvement = max(0.0, gain - self._best)
        self._best = max(self._best, gain)
        return improvement

    def _gain(self, score: float, baseline: float) -> float:
        gained = (score - baseline) / (abs(baseline) or 1.0)
        gained = gained if self._direction == "maximize" else -gained
        return in_gain_range(gained)


def _numbers(scores: Any) -> dict[str, float]:
    """The finite numbers of a mapping, of the last mapping of a list, or of a number alone."""
    if isinstance(scores, (list, tuple)):
        scores = scores[-1] if scores else {}
    if not isinstance(scores, Mapping):
        scores = {"Score": scores}
    return {
        str(name): float(value)
        for name, value in scores.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }

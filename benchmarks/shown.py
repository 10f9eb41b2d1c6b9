"""Figures as texts: the cells of every table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import truediv

from .figure import Figure
from .goals import GOALS
from .samples import Samples

_SCALES = {"us": 1e6, "ms": 1e3, "ns": 1e9, "MB": 1e-6, "/s": 1.0}  # from seconds, bytes, 1/s

# By the names of peers and the keys of figures.
Others = dict[str, dict[str, Samples]]


def rows(figures: Sequence[Figure], others: Others) -> list[tuple[str, ...]]:
    """The header and one row per figure: ours, floor, ratio, goal, verdict, and each peer."""
    shown: list[tuple[str, ...]] = [("", "ours", "floor", "ratio", "goal", "met", *others)]
    for figure in figures:
        bound = GOALS.get(figure.key)
        shown.append(
            (
                figure.name,
                _shown(figure.ours, figure.unit),
                _shown(figure.floor, figure.unit),
                _ratio(figure.ratio),
                goal(figure),
                "" if bound is None else ("yes" if bound.met(figure) else "NO"),
                *(_peer(figure, values.get(figure.key)) for values in others.values()),
            )
        )
    return shown


def brief_rows(figures: Sequence[Figure], others: Others) -> list[tuple[str, ...]]:
    """The same without quartiles."""
    shown: list[tuple[str, ...]] = [("", "ours", "floor", "ratio", "goal", "met", *others)]
    for figure in figures:
        bound = GOALS.get(figure.key)
        peers = [values.get(figure.key) for values in others.values()]
        shown.append(
            (
                figure.name,
                _value(figure.ours.median, figure.unit),
                _value(figure.floor.median, figure.unit),
                f"{figure.ratio.median:.2f}",
                goal(figure),
                "" if bound is None else ("yes" if bound.met(figure) else "NO"),
                *("-" if each is None else _value(each.median, figure.unit) for each in peers),
            )
        )
    return shown


def missed(figures: Sequence[Figure]) -> list[str]:
    """The names of those that do not reach their goal."""
    return [each.name for each in figures if each.key in GOALS and not GOALS[each.key].met(each)]


def _shown(samples: Samples, unit: str) -> str:
    """`1.50 ms [1.40, 1.60]`."""
    shown = _value(samples.median, unit)
    if samples.quartiles is None:
        return shown
    low, high = (_value(each, unit).removesuffix(f" {unit}") for each in samples.quartiles)
    return f"{shown} [{low}, {high}]"


def _ratio(samples: Samples) -> str:
    shown = f"{samples.median:.2f}"
    if samples.quartiles is None:
        return shown
    low, high = samples.quartiles
    return f"{shown} [{low:.2f}, {high:.2f}]"


def _peer(figure: Figure, theirs: Samples | None) -> str:
    """A peer's value, with the ratio of ours to it if both were measured in turn."""
    if theirs is None:
        return "-"
    shown = _value(theirs.median, figure.unit)
    if len(theirs.values) == 1:
        return shown
    return f"{shown} ({figure.ours.per_round(theirs, truediv).median:.2f})"


def _value(value: float, unit: str) -> str:
    scaled = value * _SCALES[unit]
    digits = max(0, 2 - math.floor(math.log10(scaled))) if scaled > 0 else 0
    return f"{scaled:,.{min(digits, 4)}f} {unit}"


def goal(figure: Figure) -> str:
    """The goal of a figure, "" if the figure has none."""
    bound = GOALS.get(figure.key)
    if bound is None:
        return ""
    sign = "≤" if bound.kind == "at most" else "≥"
    if bound.of == "ratio":
        return f"{sign} {bound.bound:g}"
    more = "+" if bound.of == "difference" else ""
    return f"{sign} {more}{_value(bound.bound, figure.unit)}"

"""Confidence intervals of means, and percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub
from statistics import NormalDist, mean, stdev

LEVEL = 0.95
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
# Student's t at 0.975 for 1 to 6 degrees of freedom; the expansion below is exact to 0.1 % above.
_SMALL_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469)


def interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean; None if there are too few scores to tell.

    Wilson's for scores that are all 0 or 1, Student's for others, which needs two of them. Where
    all scores are from 0 to 1, so is the interval.
    """
    if not scores:
        return None
    if all(score in {0.0, 1.0} for score in scores):
        return wilson(int(sum(scores)), len(scores))
    if len(scores) < 2:
        return None
    low, high = _of_mean(scores)
    if all(0 <= score <= 1 for score in scores):
        return max(low, 0.0), min(high, 1.0)
    return low, high


def paired_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of `after` minus `before`, which are scores of the same tasks.

    Newcombe's for scores that are all 0 or 1, Student's of the differences for others. None: there
    are too few tasks to tell, or all differences are the same, which says nothing about their
    spread.
    """
    if not before:
        return None
    if all(score in {0.0, 1.0} for score in (*before, *after)):
        return newcombe(before, after)
    differences = list(map(sub, after, before))
    if len(set(differences)) < 2:
        return None
    low, high = _of_mean(differences)
    if all(0 <= score <= 1 for score in (*before, *after)):
        return max(low, -1.0), min(high, 1.0)
    return low, high


def newcombe(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The interval of a difference of paired proportions (Newcombe 1998, method 10).

    Unlike Student's it is not empty where no task changed.
    """
    count = len(before)
    first, second = int(sum(before)), int(sum(after))
    both = sum(1 for pair in zip(before, after, strict=True) if all(pair))
    correlation = _correlation(both, first - both, second - both, count)
    low_first, high_first = wilson(first, count)
    low_second, high_second = wilson(second, count)
    shares = first / count, second / count

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    difference = shares[1] - shares[0]
    return (
        max(-1.0, difference - reach(shares[1] - low_second, high_first - shares[0])),
        min(1.0, difference + reach(high_second - shares[1], shares[0] - low_first)),
    )


def _correlation(both: int, only_first: int, only_second: int, count: int) -> float:
    """The correlation of two columns of 0 and 1, continuity-corrected as method 10 has it."""
    neither = count - both - only_first - only_second
    margins = math.prod(
        (both + only_first, both + only_second, only_first + neither, only_second + neither)
    )
    if margins == 0:
        return 0.0
    product = both * neither - only_first * only_second
    if product > 0:
        return max(product - count / 2, 0.0) / math.sqrt(margins)
    return product / math.sqrt(margins)


def _of_mean(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean of two or more values."""
    middle = mean(values)
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    share, z2 = successes / count, _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    # At the ends the formula gives 0 and 1 exactly but for rounding.
    return (0.0 if successes == 0 else middle - half), (
        1.0 if successes == count else middle + half
    )


def student(degrees: int) -> float:
    """The quantile of Student's t for the level, by its expansion around the normal one.

    Abramowitz and Stegun, 26.7.5.
    """
    if degrees <= len(_SMALL_T):
        return _SMALL_T[degrees - 1]
    z, n = _Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]

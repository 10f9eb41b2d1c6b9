"""Scores of final answers: the named rubrics of an evaluation, and functions of the user's.

A rubric here is a function of the expected answer, the given one as text, and as JSON value (None
if it has none). Those of steps and episodes are in `repl_env.rewards`, and two of these are
theirs.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from repl_env.common.set_module import set_module
from repl_env.concurrency.user_functions import call_user_function
from repl_env.rewards.answer_match import answers_match
from repl_env.rewards.outcome_rubrics import ExactMatchRubric, FuzzyMatchRubric

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

Metric: TypeAlias = "Callable[[JSON, str, JSON], float | Awaitable[float]]"
# A list in a text that is no JSON: (1, 2), (3, 4), or lines, or commas.
_GROUP = re.compile(r"[\[(]([^\[\]()]*)[\])]")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d{1,3}[.)])\s+")


async def score(metric: Metric, expected: JSON, text: str, value: JSON) -> float:
    """Score of an answer by `metric`.

    Raises:
        TypeError, ValueError: it says what is no score; and what it raises itself.
    """
    found = metric(expected, text, value)
    if inspect.isawaitable(found):
        found = await found
    if not hasattr(found, "__float__"):  # as rewards: numpy's and torch's numbers have it
        raise TypeError(f"the score is {type(found).__name__}, not a number")
    if not math.isfinite(number := float(found)):
        raise ValueError(f"the score is {number}")
    return number


def check_metric(value: Any) -> Metric:
    """`value` if it takes what a metric is given; TypeError if not.

    One whose signature tells nothing may be right.
    """
    requirement = "metric must be a function of (expected, text, value), as RUBRICS['exact'] is"
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{requirement}, not {value!r:.80}")
    metric: Metric = value
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):
        return metric
    try:
        signature.bind(None, "", None)
    except TypeError:
        hint = "metric_of(function) makes one of a function of (expected, answer)"
        raise TypeError(f"{requirement}, not one of {signature}; {hint}") from None
    return metric


@set_module("repl_env.evaluation")
def metric_of(function: Callable[[Any, Any], Any]) -> Metric:
    """The metric `function(expected, answer)`: the answer's value, or its text if it has none.

    A plain function runs in a thread: it may ask a judge, and other tasks go on meanwhile.
    """

    async def metric(expected: JSON, text: str, value: JSON) -> Any:
        return await call_user_function(function, expected, text if value is None else value)

    return metric


def json_score(expected: JSON, text: str, value: JSON) -> float:
    """1.0 if the answer is the same JSON value, as such or written as JSON text; else 0.0."""
    if answers_match(expected, value):
        return 1.0
    try:
        return float(answers_match(expected, json.loads(text)))
    except (ValueError, RecursionError):
        return 0.0


def list_score(expected: JSON, text: str, value: JSON) -> float:
    """How well a list names the expected items: F1 of the two sets, 1.0 if they are the same.

    Order and repetition do not count, nor case and outer space of texts. An answer in text may be
    JSON, Python, or items apart by commas or lines.
    """
    expected_items = {_item(each) for each in _items(expected, str(expected))}
    try:
        given_items = {_item(each) for each in _items(value, text)}
    except RecursionError:
        return 0.0
    if not expected_items and not given_items:
        return 1.0
    return 2 * len(expected_items & given_items) / (len(expected_items) + len(given_items))


RUBRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "exact": ExactMatchRubric().compare,
        "fuzzy": FuzzyMatchRubric().compare,
        "json": json_score,
        "list": list_score,
    }
)


def _items(value: JSON, text: str) -> Iterable[JSON]:
    """The items that an answer lists."""
    if isinstance(value, list):
        return value
    if value is not None and not isinstance(value, str):
        return [value]
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return _written(text)
    return parsed if isinstance(parsed, list) else [parsed]


def _written(text: str) -> list[JSON]:
    """The items of a text that is no JSON; never evaluated, whatever it looks like."""
    groups = _GROUP.findall(text)
    if len(groups) > 1:
        return [[*_parts(group)] for group in groups]
    inner = groups[0] if groups else text
    nested = re.match(r"\s*[\[(]\s*[\[(]", text) is not None
    return [[*_parts(inner)]] if nested else [*_parts(inner)]


def _parts(text: str) -> list[str]:
    lines = text.splitlines()
    pieces = lines if len(lines) > 1 else text.split(",")
    bare = (_BULLET.sub("", piece).strip().strip("\"'`,").strip() for piece in pieces)
    return [piece for piece in bare if piece]


def _item(item: JSON) -> str:
    """An item as text that is equal for what counts as equal."""
    plain = _plain(item)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(item: JSON) -> Any:
    """A list as lists of texts, for one dump: a dump of each level doubles the quotes inside."""
    if isinstance(item, list):
        return [_plain(each) for each in item]
    if isinstance(item, float) and item.is_integer():
        item = int(item)
    return item.strip().casefold() if isinstance(item, str) else json.dumps(item, sort_keys=True)

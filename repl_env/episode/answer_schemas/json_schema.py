"""Validation of answers by a JSON schema, in bounded time for any schema.

A schema may come from a client of a server or from code in a session, and the validated value from
code as well; validation delays every other caller. Therefore:

    the size of a schema is bounded, and it fetches nothing
    patterns are matched in linear time, by pydantic's engine
    keywords without a known bound are refused (`_UNBOUNDED`)
    validation stops after `CHECK_S`; each keyword checks the clock

All of it can be offloaded (`repl_env.concurrency.offload`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

from repl_env.concurrency.offload import check_deadline
from repl_sandbox.types import JSON

# CPU seconds for one answer. Thousands of records take a tenth of it.
CHECK_S = 2.0

# Values in a schema: those of large models have some hundred; checking this many takes 0.7 s.
_MAX_VALUES = 2_000
_DEEPEST = 64
_LONGEST = 1_000_000  # characters of all texts
# Validated within milliseconds.
_FEW_VALUES = 40
_SHORT_PATTERNS = 100
# Characters of all patterns: compiling one of a few hundred may take a tenth of a second.
_LONGEST_PATTERNS = 2_000

# For the slowest patterns of that length, a text of this length takes a second.
_LONGEST_TEXT = 100_000
# jsonschema's messages show the whole value, once for each alternative that it does not fit.
_LONGEST_MESSAGE = 1_000

# The reason for each unbounded keyword. Property names count as keywords too: a reference can point
# to any place of a schema.
_UNBOUNDED = {
    "patternProperties": "its patterns are matched by Python's `re`, which may take for ever",
    "unevaluatedItems": "it begins the check anew at each level",
    "unevaluatedProperties": "it begins the check anew at each level",
}

_deadline: ContextVar[float] = ContextVar("_deadline")


def by_json_schema(schema: dict[str, Any]) -> Callable[[JSON], JSON]:
    """Return a function that returns a value that fits `schema`, and raises ValueError for others.

    Raises:
        ValueError: `schema` is not a JSON schema, is too large, or cannot be checked in bounded
            time:
            `_UNBOUNDED`, and patterns with look-around or back-references.
    """
    _check_bounds(schema)
    try:
        return _of_text(json.dumps(schema))
    except TypeError:  # it holds values that are not JSON, for jsonschema to judge
        return _of(schema)


# A batch of questions has one schema, and so have thousands of episodes.
@lru_cache(maxsize=256)
def _of_text(text: str) -> Callable[[JSON], JSON]:
    return _of(json.loads(text))


def _of(schema: dict[str, Any]) -> Callable[[JSON], JSON]:
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    _hurry_past(schema)
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"answer_schema is not a JSON schema: {error.message}") from error
    # an empty registry: no $ref is ever fetched
    checker = _bounded(kind)(schema, registry=Registry())

    def validate(value: JSON) -> JSON:
        try:
            with _limited():
                worst = jsonschema.exceptions.best_match(checker.iter_errors(value))
        except Unresolvable as error:
            raise ValueError(f"the answer cannot be checked, its schema is: {error}") from None
        except RecursionError:
            problem = "it or its schema goes too deep"
            raise ValueError(f"the answer cannot be checked: {problem}") from None
        if worst is not None:
            path = "".join(f"[{step!r}]" for step in worst.absolute_path)
            raise ValueError(f"the answer{path} does not fit: {worst.message}")
        return value

    return validate


def _check_bounds(schema: dict[str, Any]) -> None:
    """Raise ValueError for a schema that cannot be validated or applied in bounded time."""
    patterns = characters = 0
    for values, (depth, name, value) in enumerate(_walk(schema)):
        characters += sum(len(each) for each in (name, value) if isinstance(each, str))
        if characters > _LONGEST:
            raise ValueError(f"answer_schema is too large: more than {_LONGEST:,} characters")
        if values > _MAX_VALUES or depth > _DEEPEST:
            problem = f"more than {_MAX_VALUES:,} values, or deeper than {_DEEPEST}"
            raise ValueError(f"answer_schema is too large: {problem}")
        if name in _UNBOUNDED:
            raise ValueError(f"answer_schema: {name} is not supported: {_UNBOUNDED[name]}")
        # A subschema may name another dialect, which would be checked by that dialect, without
        # bounds.
        if name == "$schema" and (depth > 1 or not isinstance(value, str)):
            raise ValueError("answer_schema: $schema must be a text, and stand at the top only")
        if name == "pattern" and isinstance(value, str):
            patterns += len(value)
            if patterns > _LONGEST_PATTERNS:
                limit = f"{_LONGEST_PATTERNS:,} characters of patterns"
                raise ValueError(f"answer_schema is too large: more than {limit}")
            check_deadline(long=patterns > _SHORT_PATTERNS)
            _matcher(value)


def _hurry_past(schema: dict[str, Any]) -> None:
    check_deadline(long=any(values >= _FEW_VALUES for values, _ in enumerate(_walk(schema))))


def _walk(schema: Any) -> Iterator[tuple[int, str | None, Any]]:
    """Yield each value in `schema`, with its depth and its key."""
    waiting: list[tuple[int, str | None, Any]] = [(0, None, schema)]
    while waiting:
        depth, name, value = waiting.pop()
        yield depth, name, value
        if isinstance(value, dict):
            waiting += [(depth + 1, key, inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(depth + 1, None, inner) for inner in value]


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a linear-time search for `pattern`; ValueError if there is none."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        text = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(text).isinstance_python
    except SchemaError as error:
        reason = str(error).rsplit("error: ", 1)[-1].strip()
        raise ValueError(
            f"answer_schema: pattern {pattern!r} is none that is matched in linear time "
            f"(no look-around, no back-references): {reason}"
        ) from None


@cache
def _bounded(kind: Any) -> Any:
    """Return a validator class of this kind whose keywords check the clock."""
    import jsonschema

    keywords = dict(kind.VALIDATORS) | {"pattern": _pattern, "uniqueItems": _unique_items}
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    return jsonschema.validators.extend(kind, timed)  # type: ignore[no-untyped-call]


def _timed(keyword: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def problems(validator: Any, keyword_value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _look_at_the_clock()
        for problem in keyword(validator, keyword_value, instance, schema) or ():
            _look_at_the_clock()  # rendering a large value takes time
            if len(problem.message) > _LONGEST_MESSAGE:
                problem.message = f"{problem.message[:_LONGEST_MESSAGE]}..."
            yield problem

    return problems


def _look_at_the_clock() -> None:
    check_deadline()
    if time.thread_time() > _deadline.get():
        raise ValueError(f"the answer takes too long to check: more than {CHECK_S:g} s")


@contextmanager
def _limited() -> Iterator[None]:
    token = _deadline.set(time.thread_time() + CHECK_S)
    try:
        yield
    finally:
        _deadline.reset(token)


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(instance, str):
        return
    if len(instance) > _LONGEST_TEXT:
        yield ValidationError(f"texts of more than {_LONGEST_TEXT:,} characters match no pattern")
    elif not _matcher(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique_items(validator: Any, is_unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """jsonschema's own function compares all pairs if items cannot be sorted."""
    from jsonschema import ValidationError

    if not is_unique or not isinstance(instance, list):
        return
    seen = {json.dumps(_plain(item), sort_keys=True) for item in instance}
    if len(seen) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _plain(value: Any) -> Any:
    """Return `value` with 1.0 as 1: JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value

"""Final answers: which one counts, and whether it has the requested form.

An answer arrives as a message from the session, when the cell gives it. The first valid one wins
and stands even if the cell then fails. Three forms are judged at different times:

    calls (FINAL, FINAL_VAR, SUBMIT, final_answer)   at once; a refusal is an error in the cell
    the `answer` dict                                at the end of the cell, by its last content
    printed text ("compatible" only)                 at the end, if the output has it line by line
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

from repl_env.common.threads import check_deadline, check_size, offload
from repl_env.common.values import json_or_none, replace_surrogates
from repl_env.episode.call_options import type_adapter
from repl_sandbox.types import JSON, Answer

# The field order of an answer's schema, for values that are given without names.

# The field names of an object, in order; "array" for a list; None otherwise.
Shape: TypeAlias = "tuple[str, ...] | Literal['array'] | None"

_USAGE = "SUBMIT takes one value, or fields by name: SUBMIT(answer=...)"


@dataclass(frozen=True)
class AnswerSchema:
    """Validates answers, and knows their shape."""

    check: Callable[[JSON], JSON]
    json_schema: Callable[[], dict[str, Any]]

    def __call__(self, value: JSON) -> JSON:
        """Return the value to keep; ValueError if `value` does not fit."""
        return self.check(value)

    @cached_property
    def shape(self) -> Shape:
        """The order of the fields; None if the schema has none."""
        try:
            schema: Any = self.json_schema()
        # Boundary: a user's type may have no JSON schema; pydantic reports that in many ways.
        except Exception:  # noqa: BLE001
            return None
        schema = _referred(schema)
        if isinstance(schema.get("properties"), dict):
            return tuple(map(str, schema["properties"]))
        return "array" if schema.get("type") == "array" else None


def arranged(arguments: JSON, shape: Shape) -> JSON:
    """Return the single value of several SUBMIT arguments; ValueError if they do not fit."""
    match arguments:
        case {"values": list(values), "fields": dict(fields)}:
            pass
        case _:
            raise ValueError("an argument of SUBMIT is not JSON")
    if shape == "array" and not fields:
        return values
    if shape is None or shape == "array":
        raise ValueError(_USAGE)
    if len(values) > len(shape):
        names = ", ".join(shape)
        raise ValueError(f"SUBMIT takes at most {len(shape)} values here: {names}")
    values_by_field = dict(zip(shape, values, strict=False))
    for name in values_by_field:
        if name in fields:
            raise ValueError(f"SUBMIT got {name!r} twice")
    return {**values_by_field, **fields}


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that the whole schema refers to, as in recursive models."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = (
        schema.get("$defs", {}).get(name) if isinstance(schema.get("$defs"), dict) else None
    )
    return definition if isinstance(definition, dict) else schema


# Validation of answers by a JSON schema, in bounded time for any schema.
#
# A schema may come from a client of a server or from code in a session, and the validated value
# from code as well; validation delays every other caller. Therefore:
#
#     the size of a schema is bounded, and it fetches nothing
#     patterns are matched in linear time, by pydantic's engine
#     keywords without a known bound are refused (`_UNBOUNDED`)
#     validation stops after `CHECK_S`; each keyword checks the clock
#
# All of it can be offloaded (`repl_env.common.threads`).

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


# A validator returns the value to keep, or raises ValueError with a text for the policy.
Validator: TypeAlias = Callable[[JSON], JSON]

# Code can offer printed answers in a loop. Honest code offers one, and its output shows it.
MAX_OFFERED = 64

# CPU seconds for all answers of a cell together, plus one check for the last answer: code can offer
# invalid answers in a loop.
CHECKS_S = CHECK_S


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """An accepted answer: its text, and its value if JSON can carry it."""

    text: str
    value: JSON


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of all offers: the accepted answer, if any, and the reason of the last refusal, if
    any.

    `seconds`: CPU time of the checks.
    """

    final: FinalAnswer | None
    refusal: str | None = None
    seconds: float = 0.0


NO_ANSWER: Final = Verdict(None)


class AnswerSheet:
    """The answers that one cell has offered so far. Calls come from one thread at a time.

    The checks have no side effects, may raise OffloadRequired, and can be offloaded
    (`repl_env.common.threads`).
    """

    def __init__(self, validator: Validator | None = None) -> None:
        self._validator = validator
        self._offers: list[Answer | FinalAnswer] = []
        self._dict_index: int | None = None
        self._closed = False
        self._checking = False
        self._checked_s = 0.0
        self._refusal: str | None = None

    def offer(self, answer: Answer) -> None:
        """Take an answer of the running cell.

        A refusal is a ValueError with a text for the policy.
        """
        if not self._record_unjudged(answer):
            self._record(self._judged(answer, self._checked_s))

    async def offer_async(self, answer: Answer) -> None:
        """`offer` on an event loop, without blocking it."""
        if self._record_unjudged(answer):
            return
        if self._checking:
            raise ValueError("another answer of this cell is being checked")
        self._checking = True
        try:
            verdict = await offload(partial(self._judged, answer, self._checked_s))
        finally:
            self._checking = False
        self._record(verdict)

    def verdict(self, stdout: str) -> Verdict:
        """Return the verdict after the cell has ended with this output."""
        refusal, seconds = self._refusal, self._checked_s
        for offer in self._offers:
            if isinstance(offer, FinalAnswer):
                return Verdict(offer, refusal)
            if offer.printed is not None and not starts_a_line(offer.printed, stdout):
                continue
            judged = self._judged(offer, seconds)
            if judged.final is not None:
                return Verdict(judged.final, refusal)
            refusal, seconds = judged.refusal, seconds + judged.seconds
        return Verdict(None, refusal)

    def clear(self) -> None:
        """Start anew: the cell is over."""
        self._offers.clear()
        self._dict_index, self._closed = None, False
        self._checked_s, self._refusal = 0.0, None

    def judge(self, text: str, value: JSON) -> FinalAnswer:
        """Return an answer in the requested form; ValueError says why it is refused."""
        check_size([text, value])
        carried = json_or_none(value)
        if self._validator is not None:
            carried = self._validator(carried)
        return FinalAnswer(replace_surrogates(text), carried)

    @staticmethod
    def judges_at_once(answer: Answer) -> bool:
        """Return whether `answer` is judged when it is offered, which may take long."""
        return answer.form not in ("answer", "printed")

    @property
    def has_offers(self) -> bool:
        """Whether the cell has offered an answer, accepted or refused."""
        return bool(self._offers) or self._refusal is not None

    @property
    def waiting(self) -> bool:
        """Whether an offered answer waits for the next step."""
        return bool(self._offers)

    def _record_unjudged(self, answer: Answer) -> bool:
        """Take an answer that is judged at the end of its cell, or never; False for others."""
        if answer.form == "answer" and self._dict_index is not None:
            self._offers[self._dict_index] = answer
        elif self._closed or len(self._offers) >= MAX_OFFERED:
            return True
        elif self.judges_at_once(answer):
            return False
        else:
            if answer.form == "answer":
                self._dict_index = len(self._offers)
            self._offers.append(answer)
        return True

    def _judged(self, answer: Answer, before: float) -> Verdict:
        """Run `judge` within the time limit of the cell's answers."""
        if before > CHECKS_S:
            limit = f"more than {CHECKS_S:g} s in a cell"
            return Verdict(None, f"the answers took too long to check: {limit}")
        began = time.thread_time()
        try:
            text, value = answer.text, answer.value
            if answer.form == "arguments":
                text, value = self._arranged(value)
            final, refusal = self.judge(text, value), None
        except ValueError as error:
            final, refusal = None, str(error)
        return Verdict(final, refusal, time.thread_time() - began)

    def _arranged(self, arguments: JSON) -> tuple[str, JSON]:
        """Return the answer of several SUBMIT arguments, as text and as value."""
        check_size(arguments)
        schema = self._validator
        value = arranged(arguments, schema.shape if isinstance(schema, AnswerSchema) else None)
        try:
            return str(value), value
        except RecursionError:
            raise ValueError("the answer is nested too deep") from None

    def _record(self, verdict: Verdict) -> None:
        self._checked_s += verdict.seconds
        if verdict.final is None:
            self._refusal = verdict.refusal
            raise ValueError(verdict.refusal)
        self._offers.append(verdict.final)
        self._closed = True


def starts_a_line(text: str, output: str) -> bool:
    """Return whether `text` begins a line of `output`."""
    return output.startswith(text) or f"\n{text}" in output


def validator(schema: Any) -> Validator | None:
    """Return the validator for an `answer_schema`: None, a JSON schema as a dict, or a pydantic
    type.

    A type also converts, as pydantic does: the answer "42" to `int` becomes 42.

    Raises:
        TypeError: `schema` is none of these.
        ValueError: `schema` is a dict but not a JSON schema that can be checked in bounded time.
    """
    if schema is None:
        return None
    if isinstance(schema, dict):
        return AnswerSchema(by_json_schema(schema), lambda: schema)
    return _by_type(schema)


def _by_type(schema: Any) -> Validator:
    from pydantic import ValidationError

    adapter = type_adapter(schema)

    def validate(value: JSON) -> JSON:
        try:
            return json_or_none(adapter.dump_python(adapter.validate_python(value), mode="json"))
        except ValidationError as error:
            raise ValueError(_as_text(error.errors(include_url=False))) from None

    return AnswerSchema(validate, adapter.json_schema)


def _as_text(problems: list[Any]) -> str:
    lines = []
    for problem in problems:
        path = ".".join(str(step) for step in problem["loc"])
        lines.append(f"{path}: {problem['msg']}" if path else problem["msg"])
    return "the answer does not fit: " + "; ".join(lines)

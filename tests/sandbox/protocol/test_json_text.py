"""JSON from the other side: depth, size and values are bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.messages import Answered, decode
from repl_sandbox.protocol.values import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    dump_json,
    more_values,
    parse_json,
)
from repl_sandbox.types import Answer
from tests.sandbox.protocol.message_examples import (
    frame_of,
)

# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int) -> Iterator[Any]:
    lists: Any = []
    dicts: Any = {}
    for _ in range(depth - 1):
        lists, dicts = [lists], {"a": dicts}
    yield lists
    yield dicts
    yield [0, *[[]] * 200, lists][1:]


def test_json_may_nest_up_to_the_limit_on_both_sides_and_no_deeper():
    lists, dicts, _ = nested(MAX_DEPTH)
    for value in (lists, dicts):
        assert parse_json(dump_json(value)) == value
        for deeper in ([value], {"[": value}, [[]] * 200 + [value]):
            with pytest.raises(ValueError, match="nested more than"):
                dump_json(deeper)
            with pytest.raises(RemoteProtocolError, match="nested more than"):
                parse_json(json.dumps(deeper).encode())


@pytest.mark.parametrize("depth", [1_000, 100_000, 2_000_000])
def test_json_of_any_depth_is_refused_and_never_overflows(depth):
    for data in (b"[" * depth, b"[" * depth + b"]" * depth, b'{"\\ud800":' * depth):
        with pytest.raises(RemoteProtocolError):
            parse_json(data)


def test_a_value_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="Circular"):
        dump_json(loop)


def test_brackets_within_strings_do_not_count():
    for text in ("[" * 1000, "\\[" * 1000 + '"' + "{" * 1000, '"[' * 1000, "\\" * 999 + "[" * 999):
        assert parse_json(dump_json([text, {text: text}])) == [text, {text: text}]


def test_json_of_too_many_parts_is_refused_on_both_sides_before_it_is_built():
    assert len(parse_json(b"[" + b"[]," * (MAX_CONTAINERS - 2) + b"{}]")) == MAX_CONTAINERS - 1  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="lists and objects"):
        parse_json(b"[" + b"[]," * (MAX_CONTAINERS - 1) + b"{}]")
    with pytest.raises(ValueError, match="lists and objects"):
        dump_json([[]] * MAX_CONTAINERS)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([1, [2, 3], {}], 6),
        ({"a": [[], {}], "b": 1}, 6),
        ([{"k": "[,{"}] * 20, 41),
        ("a, [b], {c}" * 9, 0),
        (['say "a, b", [c]\\'] * 9, 10),
        (["\\", 'x", "y', "\\\\"], 4),
    ],
)
def test_values_are_counted_without_parsing(value, count):
    for data in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode()):
        assert more_values(data, max(0, count - 4)) == (count > 0)
        assert not more_values(data, count)
        assert not more_values(data[:-1], count)


def test_an_answer_without_a_json_form_has_the_value_none_and_its_text():
    (deep, *_) = nested(MAX_DEPTH + 1)
    sent = Answered(1, 1, Answer("FINAL", "deep", deep))
    assert decode(frame_of(sent)) == Answered(1, 1, Answer("FINAL", "deep", None))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), 1j, {1: 2}])
def test_values_without_a_json_form_are_not_sent(value):
    with pytest.raises((TypeError, ValueError)):
        dump_json([value])

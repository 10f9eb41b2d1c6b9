"""Untrusted JSON schemas: checked in bounded time, or refused."""

import json

import pytest

from repl_env.episode.answers import by_json_schema


def schema_of_doublings(levels):
    """Each definition asks twice for the next: 2 ** levels checks."""
    ask = [{"$ref": f"#/$defs/a{n + 1}"} for n in range(levels)]
    definitions = {f"a{n}": {"allOf": [ask[n], ask[n]]} for n in range(levels)}
    return {"$defs": {**definitions, f"a{levels}": {}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "string", "pattern": "^[a-c]{2}$"}, "ab", "abd"),
        ({"pattern": "x"}, 5, "no"),
        ({"items": {"pattern": r"\d+"}}, ["a1", "2"], ["a"]),
        ({"uniqueItems": True}, [1, True, {"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1.0}]),
        ({"uniqueItems": False}, [1, 1], None),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, 5, "5"),
        ({"$defs": {"n": {"type": "number"}}, "items": {"$ref": "#/$defs/n"}}, [1, 2.5], ["x"]),
        ({"properties": {"pattern": {"type": "string"}}}, {"pattern": "("}, {"pattern": 5}),
    ],
)
def test_valid_and_invalid_values_of_schemas(schema, fits, does_not):
    check = by_json_schema(schema)
    assert check(fits) == fits
    if does_not is not None:
        with pytest.raises(ValueError, match="does not fit"):
            check(does_not)


def test_a_pattern_takes_linear_time():
    check = by_json_schema({"items": {"pattern": "^(a+)+$"}})
    with pytest.raises(ValueError, match=r"\[0\] does not fit"):
        check(["a" * 5000 + "!"])
    with pytest.raises(ValueError, match="100,000"):
        check(["a" * 100_001])


def test_a_validation_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr("repl_env.episode.answers.CHECK_S", 0.05)
    check = by_json_schema(schema_of_doublings(50))
    with pytest.raises(ValueError, match=r"takes too long to check: more than 0\.05 s"):
        check("x")


def test_many_unlike_items_are_not_compared_in_pairs():
    check = by_json_schema({"uniqueItems": True})
    items = [{"a": n} if n % 2 else n for n in range(50_000)]
    assert check(items) == items


def test_a_validation_error_is_short():
    with pytest.raises(ValueError, match=r"does not fit: .*\.\.\.$") as raised:
        by_json_schema({"type": "string"})(["x" * 1_000_000])
    assert len(str(raised.value)) < 2_000


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$schema": []}, r"\$schema"),
        ({"$schema": 5}, r"\$schema"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, r"\$schema"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "(?=a)"}, "no look-around"),
        ({"pattern": r"(a)\1"}, "no look-around"),
        ({"pattern": r"(\w{100}){100}"}, "pattern"),
        ({"anyOf": [{"pattern": "a" * 300}] * 10}, "too large"),
        ({"patternProperties": {"(a+)+$": {}}}, "patternProperties is not supported"),
        ({"unevaluatedItems": False}, "unevaluatedItems is not supported"),
        ({"enum": list(range(2001))}, "too large"),
        (json.loads('{"not": ' * 100 + "{}" + "}" * 100), "too large"),
    ],
)
def test_a_schema_of_unbounded_cost_is_refused(schema, said):
    with pytest.raises(ValueError, match=f"answer_schema.*{said}"):
        by_json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#"}, "too deep"),
        ({"$ref": "#/nope"}, "nope"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "Unresolvable"),
        ({"$dynamicRef": "#nope"}, "nope"),
    ],
)
def test_a_dangling_reference_is_an_error_when_an_answer_is_checked(schema, said):
    with pytest.raises(ValueError, match=f"cannot be checked.*{said}"):
        by_json_schema(schema)("x")

"""Bytes in the arguments of a reset cross the wire as JSON, and come back as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_env.common.binary_json import MAX_CONTEXTS, WireValueError, decode, decode_async, encoded


def encode(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a reset, for the wire."""
    told = dict(arguments)
    if "context" in told:
        told["context"] = encoded(told["context"])
    for field in ("contexts", "files"):
        if isinstance(told.get(field), dict):
            told[field] = {name: encoded(value) for name, value in told[field].items()}
    return told


scalars = st.none() | st.booleans() | st.integers() | st.text()
keys = st.sampled_from(["$bytes", "$json"]) | st.text(max_size=3)
values = st.recursive(
    scalars | st.binary(), lambda inner: st.dictionaries(keys, inner, max_size=2), max_leaves=4
)


def without_inner_bytes(value: Any) -> Any:
    """Bytes are contexts, and no part of one."""
    if isinstance(value, dict):
        return {
            key: repr(each) if isinstance(each, bytes) else without_inner_bytes(each)
            for key, each in value.items()
        }
    return value


@given(values.map(without_inner_bytes))
def test_encoded_values_are_json_and_decode_to_the_same(value: Any) -> None:
    arguments = {
        "context": value,
        "contexts": {"a": value},
        "files": {"b": value},
        "task_prompt": {"$bytes": "left alone"},
        "seed": 1,
    }

    wire = json.loads(json.dumps(encode(arguments)))

    assert decode(wire) == arguments


def test_bytes_of_any_length_and_kind_are_the_same_again() -> None:
    for length in (0, 1, 2, 3, (3 << 18) - 1, 3 << 18, (3 << 18) + 1, 3 << 20):
        data = bytes(range(256)) * (length // 256) + b"\xff" * (length % 256)
        for given_as in (data, bytearray(data), memoryview(data)):
            assert decode(encode({"context": given_as}))["context"] == data


@pytest.mark.parametrize(
    "text",
    ["a", "aa", "a===", "aaaa=", "aa==aaaa", "aa=a", "====", "aa a", "aaa\n", "é", "aaa-", 1, None],
)
def test_invalid_base64_is_refused_with_its_path(text: object) -> None:
    with pytest.raises(WireValueError) as caught:
        decode({"files": {"dir/name": {"$bytes": text}}})
    assert caught.value.position == ("files", "dir/name")


def test_padding_inside_a_large_text_is_refused_wherever_it_stands() -> None:
    with pytest.raises(WireValueError, match="padding"):
        decode({"context": {"$bytes": "A" * ((1 << 20) - 2) + "==" + "A" * 8}})


def test_more_names_than_the_limit_are_refused() -> None:
    with pytest.raises(WireValueError) as caught:
        decode({"contexts": {str(i): "" for i in range(MAX_CONTEXTS + 1)}})
    assert caught.value.position == ("contexts",)


@pytest.mark.parametrize(
    "plain",
    [
        {"context": None, "contexts": None, "seed": 3, "other": [1]},
        {"contexts": [{"$bytes": "AA=="}], "files": "x"},
    ],
)
def test_arguments_without_bytes_are_unchanged(plain: dict[str, Any]) -> None:
    assert decode(plain) == encode(plain) == plain


@pytest.mark.parametrize("length", [3, 5 << 20])
async def test_the_asynchronous_conversion_is_the_same(length: int) -> None:
    arguments = {"context": b"x" * length, "contexts": {"a": b"y" * length}, "seed": 1}
    assert await decode_async(encode(arguments)) == arguments
    with pytest.raises(WireValueError, match=r"^files.f: no base64"):
        await decode_async({**encode(arguments), "files": {"f": {"$bytes": "x"}}})

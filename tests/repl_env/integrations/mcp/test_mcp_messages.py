"""Texts as messages of the Model Context Protocol, and lines of bytes as texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from repl_env.common.values import MAX_DEPTH
from repl_env.integrations.mcp import BadMessage, parse
from repl_env.integrations.mcp_stdio import StdioLines


def nested(depth):
    """A request that is `depth` objects and lists deep."""
    inner = "[" * (depth - 2) + "]" * (depth - 2)
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "m", "params": {{"a": {inner}}}}}'


@pytest.mark.parametrize("request_id", [0, -7, "a", ""])
def test_an_object_with_an_id_and_a_method_is_a_request(request_id):
    text = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "m", "params": {"a": 1}})

    message = parse(text)

    assert isinstance(message, JSONRPCRequest)
    assert (message.id, message.params) == (request_id, {"a": 1})


def test_without_an_id_it_is_a_notification():
    assert isinstance(parse('{"jsonrpc": "2.0", "method": "m"}'), JSONRPCNotification)


def test_responses_are_messages_too():
    assert isinstance(parse('{"jsonrpc": "2.0", "id": 1, "result": {}}'), JSONRPCResponse)


@pytest.mark.parametrize("request_id", ["null", "true", "1.0", "[]", "{}"])
def test_an_invalid_id_is_refused_and_not_taken_as_missing(request_id):
    with pytest.raises(BadMessage, match="id must be a string or a whole number") as raised:
        parse(f'{{"jsonrpc": "2.0", "id": {request_id}, "method": "m"}}')

    assert raised.value.answer().id is None


def test_the_deepest_message_is_taken_and_a_deeper_one_is_not():
    assert isinstance(parse(nested(MAX_DEPTH)), JSONRPCRequest)
    with pytest.raises(BadMessage, match="nested deeper than 64"):
        parse(nested(MAX_DEPTH + 1))


def is_message_or_refused(text):
    """Whether reading `text` does one of the two things that it may."""
    try:
        return isinstance(parse(text), JSONRPCMessage)
    except BadMessage as error:
        return error.answer().error.code in {-32700, -32600, -32602}


@settings(max_examples=50)
@given(st.binary(max_size=50) | st.text(max_size=50))
def test_any_text_is_a_message_or_refused(text):
    assert is_message_or_refused(text)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_message_or_refused(value):
    assert is_message_or_refused(json.dumps(value))


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_survive_any_chunking(lines, data):
    stream = b"".join(line + b"\n" for line in lines)
    read, found, position = StdioLines(limit=20), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        found += read.feed(stream[position : position + size])
        position += size

    assert found == lines


def test_a_line_over_the_limit_is_an_error_and_the_next_one_is_read():
    read = StdioLines(limit=4)
    found = [
        line for part in (b"12", b"345", b"6789", b"0\nab", b"cd\n") for line in read.feed(part)
    ]

    assert found == [None, b"abcd"]

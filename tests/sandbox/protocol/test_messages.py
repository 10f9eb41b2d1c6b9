"""Messages: their form as frames, fixed headers and the document."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import get_args

import pytest

from repl_sandbox.protocol import frames, messages, values
from repl_sandbox.protocol.frames import Frame
from repl_sandbox.protocol.messages import MAX_COUNT, Answered, HostMessage, Message, Result, decode
from repl_sandbox.types import Answer
from tests.sandbox.protocol.message_examples import (
    ALL,
    CHANGE,
    DISPLAYS,
    DOCUMENTED,
    ERROR,
    EXAMPLES,
    PNG,
    PROTOCOL,
    SHORT,
    frame_of,
    refused,
)

# ── round trips ──────────────────────────────────────────────────────────────────────────────────


def test_every_message_has_an_example():
    assert {type(m) for ms in EXAMPLES.values() for m in ms} == set(get_args(Message))


@pytest.mark.parametrize("message", ALL)
def test_a_message_is_decoded_as_it_was_encoded(message):
    assert decode(frame_of(message)) == message


@pytest.mark.parametrize("message", ALL)
def test_decoded_messages_are_immutable(message):
    decoded = decode(frame_of(message))
    for field in dataclasses.fields(decoded):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(decoded, field.name, None)


@pytest.mark.parametrize("message", ALL)
def test_decoded_messages_are_hashable_except_the_json_of_answers(message):
    if isinstance(message, Answered) and isinstance(message.answer.value, (dict, list)):
        message = Answered(1, 1, Answer("FINAL", message.answer.text))
    assert hash(decode(frame_of(message))) == hash(message)


@pytest.mark.parametrize("message", ALL)
def test_headers_of_json_are_ascii(message):
    header = frame_of(message).header
    assert header.isascii() or not header.startswith(b"{")


# ── short headers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("message", "kind", "numbers"), SHORT)
def test_a_short_header_is_its_kind_and_its_numbers(message, kind, numbers):
    frame = frame_of(message)
    assert frame.header == bytes([kind]) + b"".join(n.to_bytes(8, "big") for n in numbers)
    assert decode(frame) == message


def test_a_result_with_content_has_no_short_header():
    empty = Result(1, None, None, (), (), 0)
    for more in (
        {"value": ""},
        {"error": ERROR},
        {"changes": (CHANGE,)},
        {"figures": (PNG,)},
        {"displays": DISPLAYS},
    ):
        told = dataclasses.replace(empty, **more)
        assert frame_of(told).header.startswith(b"{")
        assert decode(frame_of(told)) == told


@pytest.mark.parametrize("kind", [1, 2])
def test_a_short_header_of_another_length_or_with_a_number_that_is_no_count_is_refused(kind):
    numbers = [1] * kind
    for wrong in (b"", b"\0", b"\0" * 7, b"\0" * (8 * kind - 1), b"\0" * (8 * kind + 1)):
        refused(Frame(bytes([kind]) + wrong, b""), f"a short header of {len(wrong) + 1} bytes")
    for at in range(kind):
        for wrong_number in (MAX_COUNT, (1 << 64) - 1):
            several = [*numbers[:at], wrong_number, *numbers[at + 1 :]]
            packed = b"".join(number.to_bytes(8, "big") for number in several)
            refused(Frame(bytes([kind]) + packed, b""), "is not a count")


def test_an_empty_result_with_a_blob_is_refused():
    refused(Frame(b"\2" + bytes(16), b"x"), "an empty result with a blob")


@pytest.mark.parametrize("kind", [0, 3, 4, 9, 10, 32, 255])
def test_no_other_first_byte_makes_a_short_header(kind):
    refused(Frame(bytes([kind]) + bytes(8), b""))
    refused(Frame(bytes([kind]) + bytes(16), b""))


# ── the document ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_document_lists_each_message_with_its_side_and_the_fields_of_its_header(kind):
    for message in EXAMPLES[kind]:
        side = "host" if isinstance(message, get_args(HostMessage)) else "worker"
        name, from_, fields = DOCUMENTED[kind]
        assert (name, from_) == (type(message).__name__, side)
        data = frame_of(message).header
        if data.startswith(b"{"):
            header = json.loads(data)
            assert header.pop("type") == kind
            assert fields == tuple(header)
        else:
            assert kind in ("execute", "result")


_SHORT_ROW = re.compile(r"^\| (\d) \| `(\w+)` \| (.*?) \|$", re.MULTILINE)


def test_the_document_lists_the_short_headers():
    documented = {
        (int(kind), name, len(re.findall(r"`\w+` u64", fields)))
        for kind, name, fields in _SHORT_ROW.findall(PROTOCOL)
    }
    assert documented == {(kind, type(m).__name__, len(numbers)) for m, kind, numbers in SHORT}


def test_the_document_lists_no_other_message():
    assert DOCUMENTED.keys() == EXAMPLES.keys()


LIMITS = [
    *((frames, name) for name in ("MAX_HEADER", "MAX_BLOB")),
    *(
        (messages, name)
        for name in vars(messages)
        if name.startswith("MAX_") and name not in vars(frames)
    ),
    *((values, name) for name in ("MAX_PARTS", "MAX_PLACE")),
    (messages, "VERSION"),
]


@pytest.mark.parametrize(("module", "name"), LIMITS, ids=[name for _, name in LIMITS])
def test_the_document_states_the_limits_as_they_are(module, name):
    assert f"| `{name}` | {getattr(module, name):,} |" in PROTOCOL

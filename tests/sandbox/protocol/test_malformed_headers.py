"""Headers of another form, type or size are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.frames import (
    FORMS,
    MAX_CHANGES,
    MAX_DISPLAYS,
    MAX_FIGURES,
    MAX_HEADER,
    MAX_LOST,
    MAX_MESSAGE,
    MAX_NAME,
    Frame,
)
from repl_sandbox.protocol.messages import (
    MAX_COUNT,
    Answered,
    Failed,
    HostCall,
    Ready,
    Restored,
    Result,
    decode,
    encode,
)
from repl_sandbox.protocol.values import MAX_PARTS, RawArgument, parse_json
from repl_sandbox.types import DISPLAY_FORMS, Answer, Change, Display, ErrorInfo
from tests.sandbox.protocol.message_examples import (
    DOCUMENTED,
    EXAMPLES,
    PNG,
    PROTOCOL,
    frame_of,
    make,
    refused,
)

# ── malformed headers ────────────────────────────────────────────────────────────────────────────

COUNT = [None, -1, MAX_COUNT, 10**400, True, False, 1.0, 1e300, "1", [1], {}]
TEXT = [None, 1, True, 1.5, ["x"], {"x": 1}]
BOOL = [None, 0, 1, "true", [], {}]
# For each field of each header, values that it must not have.
WRONG: dict[str, dict[str, list[Any]]] = {
    "ready": {"version": COUNT},
    "configure": {
        "seed": COUNT[1:],
        "answers": [1, True, "", "STRICT", [], {}],
        "functions": COUNT,
        "variables": [
            *(None, 0, "x", {}, [None], [[]], [["a", "str"]], [["a", "str", 0, 0]]),
            *([["a", "str", wrong]] for wrong in [*COUNT, 1 << 40]),
            *([["a", wrong, 0]] for wrong in [*TEXT, "", "pickle"]),
            *([[wrong, "str", 0]] for wrong in TEXT),
        ],
    },
    "assign": {"name": TEXT, "kind": [*TEXT, "", "pickle"], "size": COUNT[1:]},
    "fetch": {"name": TEXT},
    "list": {},
    "reply": {"call": COUNT, "ok": BOOL, "kind": [*TEXT, "", "pickle"]},
    "call": {
        "call": COUNT,
        "cell": COUNT,
        "name": TEXT,
        "parts": [
            *(None, 0, "x", {}, [None], [[]], [["a", "str"]], [["a", "str", 1, 2]]),
            *([["a", "str", wrong]] for wrong in [*COUNT, 10**6]),
            *([["a", wrong, 1]] for wrong in [*TEXT, "", "json"]),
            *([[wrong, "str", 1]] for wrong in [None, -1, MAX_PARTS, True, 1.5, [], "x" * 201]),
            *([["a", "list", wrong]] for wrong in [None, 1, "x", {}, [1], [[]], [["str"]]]),
            *([["a", "list", [["str", wrong]]]] for wrong in [None, -1, True, 10**6]),
            *([["a", "list", [["list", 1]]]], [["a", "list", [None] * (MAX_PARTS + 1)]]),
            *([["a", "str", 1], ["a", "str", 1]], [["a", "str", 8], ["b", "bytes", 10**6]]),
        ],
    },
    "answered": {
        "call": COUNT,
        "cell": COUNT,
        "form": [*TEXT, "", "final", "ready"],
        "text": [*COUNT, 0, 10**6],
        "printed": [*COUNT[1:], 10**6],
    },
    "result": {
        "cell": COUNT,
        "value": [*COUNT[1:], 10**6],
        "error": [0, True, "x", {}, [], ["a", "b", "c"], ["a", "b", "c", 1, 2]],
        "changes": [None, 0, "x", {}, [None], [[]], [["new", "x", "int", 1]]],
        "figures": [None, 0, "x", {}, [None], [-1], [True], ["1"], [1 << 70], [[1]]],
        "displays": [
            *(None, 0, "x", {}, [None], [[]], [[True]], [[True, [], 1]], [[True, {}]]),
            *([[wrong, [["", 0]]]] for wrong in BOOL),
            *([[True, [["", wrong]]]] for wrong in [*COUNT, 1 << 40]),
            *([[True, [["", 0], [wrong, 0]]]] for wrong in [*TEXT, "", "text/plain", "image/png"]),
            *([[True, [["", 0], *rows]]] for rows in ([["text/html"]], [["text/html", 0, 0]], [0])),
            [[True, []]],  # without its text
        ],
        "peak": COUNT,
    },
    "value": {},
    "variables": {},
    "failed": {"kind": [*TEXT, "", "other"], "message": TEXT},
}
FIELDS = [(kind, field) for kind, fields in WRONG.items() for field in fields]


def example(kind: str) -> tuple[dict[str, Any], bytes]:
    """Return header and blob of the largest example of a message."""
    frame = frame_of(max(EXAMPLES[kind], key=lambda message: len(encode(message))))
    return json.loads(frame.header), frame.blob


def test_every_field_of_every_header_is_tested():
    for kind, fields in WRONG.items():
        assert {"type", *fields} == example(kind)[0].keys()


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_header_without_one_of_its_fields_is_refused(kind, field):
    header, blob = example(kind)
    del header[field]
    refused(make(header, blob), f"malformed {kind} message: '{field}'")


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_of_another_type_or_out_of_range_is_refused(kind, field):
    for wrong in WRONG[kind][field]:
        header, blob = example(kind)
        decode(make(header, blob))
        refused(make({**header, field: wrong}, blob), f"malformed {kind} message|not JSON")


@pytest.mark.parametrize(
    ("position", "wrong"),
    [
        *((0, value) for value in [None, 1, [], {}, "", "renamed"]),
        *((1, value) for value in TEXT),
        *((2, value) for value in TEXT),
        *((3, value) for value in COUNT),
        *((4, value) for value in TEXT),
    ],
)
def test_a_change_with_a_wrong_part_is_refused(position, wrong):
    header, blob = example("result")
    header["changes"][1][position] = wrong
    refused(make(header, blob), "a field of a change")


@pytest.mark.parametrize(
    ("position", "wrong"),
    [(at, value) for at in (0, 1, 2) for value in TEXT] + [(3, value) for value in COUNT[1:]],
)
def test_an_error_with_a_wrong_part_is_refused(position, wrong):
    header, blob = example("result")
    header["error"][position] = wrong
    refused(make(header, blob), "a field of the error")


@pytest.mark.parametrize(
    ("position", "wrong"),
    [(at, value) for at in (0, 1, 3) for value in TEXT] + [(2, value) for value in COUNT],
)
def test_a_variable_with_a_wrong_part_is_refused(position, wrong):
    row: list[Any] = ["x", "int", 28, "6"]
    row[position] = wrong
    refused(make({"type": "variables"}, json.dumps([row]).encode()), "a field of a variable")


@pytest.mark.parametrize(
    "header",
    [b"", b" ", b"{", b"{}", b"[]", b"null", b'"ready"', b"1", b'{"type":"ready","version":1}x'],
)
def test_a_header_that_is_no_object_with_a_type_is_refused(header):
    refused(Frame(header, b""))


@pytest.mark.parametrize(
    "kind", [None, 1, True, [], {}, "", "Ready", "exec", "x" * 10_000, "\ud800"]
)
def test_an_unknown_type_is_refused_with_a_short_message(kind):
    with pytest.raises(RemoteProtocolError) as refusal:
        decode(make({"type": kind}))
    assert len(str(refusal.value)) < 100


# ── headers that are too much ────────────────────────────────────────────────────────────────────

FROM_WORKER = [kind for kind, (_, side, _) in DOCUMENTED.items() if side == "worker"]
_FORM_ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
ASTRAL = "\U0001f40d"


def test_the_document_states_how_large_headers_may_be():
    rows = [[each.replace(",", "") for each in row] for row in _FORM_ROW.findall(PROTOCOL)]
    assert {kind: (int(size), int(count)) for kind, size, count in rows} == {
        kind: (FORMS[kind].size, FORMS[kind].values) for kind in FROM_WORKER
    }


@pytest.mark.parametrize("more", [0, None, "x", [], [[]], {}, {"a": [1]}])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_header_with_an_unknown_field_is_refused(kind, more):
    if kind in WRONG:
        header, blob = example(kind)
        for name in ("more", "Type", "", "cells", "__class__"):
            refused(make({**header, name: more}, blob), "a field that the message does not have")


@pytest.mark.parametrize("kind", FROM_WORKER)
def test_a_header_is_counted_and_measured_before_it_is_parsed(kind):
    header, blob = example(kind)
    whole, form = json.dumps(header).encode()[:-1], FORMS[kind]
    no_json = b'"more": ]' + b" " * form.size  # a parser would report this first
    refused(Frame(whole + b"," + no_json, blob), f"a {kind} header of [0-9]+ bytes")
    for value in (b"[],", b"0,", b'"",', b'"a":0,', b"[[],", b"{},"):
        many = whole + b', "more": ]' + value * (form.values + 3)
        refused(Frame(many, blob), f"a {kind} header (with more than [0-9]+ values|of)")


@pytest.mark.parametrize(
    "header",
    [
        b'{"version":7,"type":"ready"}',
        b' {"type":"ready","version":7}',
        b'{ "type":"ready","version":7}',
        b'{"type" :"ready","version":7}',
        b'{"\\u0074ype":"ready","version":7}',
        b'{"type":"re\\u0061dy","version":7}',
        b'{"type":"ready","version":7,"type":"value"}',
        b'{"type":"value","type":"ready","version":7}',
        b'[{"type":"ready","version":7}]',
    ],
)
def test_a_header_that_does_not_begin_with_its_one_type_is_refused(header):
    refused(Frame(header, b""))


@pytest.mark.parametrize("kind", ["ready", "restored", "failed", "fetch", "list", "save"])
def test_a_blob_on_a_message_that_has_none_is_refused(kind):
    refused(make(example(kind)[0], b"x"), f"a {kind} message with a blob")


@pytest.mark.parametrize(
    "message",
    [
        Ready(MAX_COUNT - 1),
        Restored(MAX_COUNT - 1, (ASTRAL * MAX_NAME,) * MAX_LOST),
        Failed("not json", ASTRAL * MAX_MESSAGE),
        Answered(MAX_COUNT - 1, MAX_COUNT - 1, Answer("printed", "x", "x", "x")),
        HostCall(
            MAX_COUNT - 1,
            MAX_COUNT - 1,
            "f" * 1000,
            b"[]",
            tuple((place, RawArgument("bytes", b"")) for place in range(MAX_PARTS)),
        ),
        HostCall(1, 1, "f", b"[]", ((0, (RawArgument("bytes", b"x"),) * MAX_PARTS),)),
        Result(
            MAX_COUNT - 1,
            "x",
            ErrorInfo("E", ASTRAL * 4096, "x" * 100_000, MAX_COUNT - 1),
            (Change("modified", "[" * MAX_NAME, "list", MAX_COUNT - 1, '[",' * 60),) * MAX_CHANGES,
            (PNG,) * MAX_FIGURES,
            MAX_COUNT - 1,
            (Display("x", dict.fromkeys(DISPLAY_FORMS, "x")),) * MAX_DISPLAYS,
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_header_that_a_worker_sends_is_taken(message):
    assert len(frame_of(message).header) <= MAX_HEADER
    assert decode(frame_of(message)) == message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000])
def test_a_number_that_is_not_finite_is_refused(number):
    refused(Frame(b'{"type":"ready","version":%s}' % number.encode(), b""))
    with pytest.raises(RemoteProtocolError):
        parse_json(f"[{number}]".encode())


@pytest.mark.parametrize(
    "junk", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80"]
)
def test_bytes_that_are_not_utf8_are_refused(junk):
    refused(Frame(b'{"type":"fetch","name":"%s"}' % junk, b""), "not JSON")


def test_a_byte_order_mark_is_refused():
    refused(Frame(b'\xef\xbb\xbf{"type":"list"}', b""), "does not begin")


def test_of_a_repeated_field_the_last_one_counts():
    frame = Frame(b'{"type":"ready","version":2,"type":"list","version":1,"type":"ready"}', b"")
    assert decode(frame) == Ready(1)


@pytest.mark.parametrize("depth", [500, 3_000, 100_000])
@pytest.mark.parametrize(
    "header",
    [
        '{"type":%s}',
        '{"type":"ready","version":%s}',
        '{"type":"ready","version":1,"x":["\\ud800",%s]}',
    ],
)
def test_a_deep_header_is_refused_and_never_overflows(header, depth):
    nested = header % ("[" * depth + "]" * depth)
    try:
        assert decode(Frame(nested.encode(), b"")) == Ready(1)
    except RemoteProtocolError:
        pass

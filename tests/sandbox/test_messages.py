"""Messages: their form as frames, and that nothing but this form is taken for one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol import frames, messages
from repl_sandbox.protocol.frames import MAX_HEADER, Frame, FrameReader
from repl_sandbox.protocol.function_schema import Default, FunctionSchema, Parameter, Signature
from repl_sandbox.protocol.header_limits import (
    FORMS,
    MAX_CHANGES,
    MAX_FIGURES,
    MAX_LOST,
    MAX_MESSAGE,
    MAX_NAME,
)
from repl_sandbox.protocol.messages import (
    MAX_COUNT,
    MAX_VARIABLES,
    Answered,
    Assign,
    Configure,
    Execute,
    Failed,
    Fetch,
    HostCall,
    HostMessage,
    HostReply,
    ListVariables,
    Load,
    Message,
    Ready,
    Restored,
    Result,
    Save,
    Value,
    Variables,
    decode,
    encode,
)
from repl_sandbox.protocol.values import raw_arguments
from repl_sandbox.protocol.values.json_text import MAX_CONTAINERS, MAX_DEPTH, dump_json, parse_json
from repl_sandbox.protocol.values.json_value_count import more_values
from repl_sandbox.protocol.values.raw_arguments import MAX_PARTS, RawArgument
from repl_sandbox.types import Answer, Change, ErrorInfo, Variable

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
PNG = b"\x89PNG\r\n\x1a\n and the rest"
ERROR = ErrorInfo("ValueError", "no", "Traceback …\nValueError: no\n", 3)
CHANGE = Change("modified", "größe", "list", 88, "[1, 2, …]")

TAKES = Signature(
    (
        Parameter("p", 1, None, "int"),
        Parameter("c", 3, Default(None)),
        Parameter("d", 3, Default(text="...")),
    ),
    "list[str]",
    False,
)


EXAMPLES: dict[str, list[Message]] = {
    "ready": [Ready(1)],
    "restored": [Restored(0, ()), Restored(9, ("thread 'größe'", "a file"))],
    "configure": [
        Configure(),
        Configure(
            (
                FunctionSchema("llm_query", "Ask a model."),
                FunctionSchema("größe"),
                FunctionSchema("ask", "", "text", TAKES, ("c",), ("done", "result"), ("E",)),
            ),
            0,
            "strict",
        ),
        Configure((), MAX_COUNT - 1, "compatible"),
        Configure((), None, None, (Assign("x", "str", b""),)),
        Configure(
            (FunctionSchema("ask"),),
            variables=(Assign("größe", "json", b"[1]"), Assign("x", "bytes", b"\x00")),
        ),
    ],
    "execute": [
        Execute(1, b""),
        Execute(2, "print('größe \ud800')".encode("utf-8", "surrogatepass")),
    ],
    "assign": [Assign("x", "bytes", b"\x00\xff"), Assign("größe", "json", b"", 1 << 40)],
    "fetch": [Fetch("x"), Fetch("größe")],
    "list": [ListVariables()],
    "save": [Save(1, 0), Save((1 << 53) - 1, 1 << 50)],
    "load": [Load(1, b""), Load((1 << 53) - 1, b'{"variables":[]}')],
    "reply": [HostReply(1, True, b"null"), HostReply(MAX_COUNT - 1, False, b'["TypeError","no"]')],
    "call": [
        HostCall(1, 1, "llm_query", b"[[],{}]"),
        HostCall(0, 0, "", b""),
        HostCall(2, 1, "f", b"[[null],{}]", ((0, RawArgument("bytes", b"\x00\xff")),)),
        HostCall(
            3,
            1,
            "f",
            dump_json([[], {"a": None, "größe": None}]),
            (
                ("a", (RawArgument("str", "größe 🐍".encode()), None, RawArgument("bytes", b""))),
                ("größe", RawArgument("str", b"\xed\xa0\x80")),
            ),
        ),
    ],
    "answered": [
        Answered(1, 1, Answer("FINAL", "42", 42)),
        Answered(2, 1, Answer("answer", "größe 🐍", {"a": [1, None, 2.5, "🐍"]})),
        Answered(3, 1, Answer("printed", "x", "x", "FINAL(x)\nand more")),
        Answered(4, 1, Answer("SUBMIT", "", None, "")),
    ],
    "result": [
        Result(1, None, None, (), (), 0),
        Result(2, "größe 🐍", ERROR, (CHANGE, CHANGE), (PNG, PNG + b"2"), 1 << 33),
        Result(3, "", dataclasses.replace(ERROR, line=None), (), (PNG,), 1),
    ],
    "value": [Value(b"null"), Value(b"")],
    "variables": [Variables(()), Variables((Variable("x", "int", 28, "6"),) * 3)],
    "failed": [
        Failed("unknown", "no variable 'x'"),
        Failed("not json", ""),
        Failed("too large", ""),
    ],
}
# Those whose header is not JSON: its kind, and its numbers.
SHORT = [
    (Execute(3, b"x = 1"), 1, (3,)),
    (Execute(MAX_COUNT - 1, b""), 1, (MAX_COUNT - 1,)),
    (Result(1, None, None, (), (), 0), 2, (1, 0)),
    (Result(0, None, None, (), (), MAX_COUNT - 1), 2, (0, MAX_COUNT - 1)),
]
ALL = [pytest.param(m, id=f"{kind}-{n}") for kind, ms in EXAMPLES.items() for n, m in enumerate(ms)]


def frame_of(message: Message) -> Frame:
    reader = FrameReader()
    reader.feed(encode(message))
    frame = reader.next_frame()
    assert frame is not None
    assert reader.buffered == 0
    return frame


def make(header: object, blob: bytes = b"") -> Frame:
    return Frame(json.dumps(header).encode(), blob)


def refused(frame: Frame, match: str = ".") -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        decode(frame)


# ── round trips ──────────────────────────────────────────────────────────────────────────────────


def test_there_is_an_example_of_every_message():
    assert {type(m) for ms in EXAMPLES.values() for m in ms} == set(get_args(Message))


@pytest.mark.parametrize("message", ALL)
def test_a_message_is_decoded_as_it_was_encoded(message):
    assert decode(frame_of(message)) == message


@pytest.mark.parametrize("message", ALL)
def test_what_is_decoded_cannot_be_changed(message):
    decoded = decode(frame_of(message))
    for field in dataclasses.fields(decoded):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(decoded, field.name, None)


@pytest.mark.parametrize("message", ALL)
def test_what_is_decoded_can_be_hashed_but_for_an_answers_json(message):
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


def test_a_result_that_has_something_to_tell_has_no_short_header():
    empty = Result(1, None, None, (), (), 0)
    for more in ({"value": ""}, {"error": ERROR}, {"changes": (CHANGE,)}, {"figures": (PNG,)}):
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

_ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (host|worker) \| (.*?) \|", re.MULTILINE)
DOCUMENTED = {
    kind: (name, side, tuple(re.findall(r"`(\w+)`", fields)))
    for kind, name, side, fields in _ROW.findall(PROTOCOL)
}


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
    *((raw_arguments, name) for name in ("MAX_PARTS", "MAX_PLACE")),
    (messages, "VERSION"),
]


@pytest.mark.parametrize(("module", "name"), LIMITS, ids=[name for _, name in LIMITS])
def test_the_document_states_the_limits_as_they_are(module, name):
    assert f"| `{name}` | {getattr(module, name):,} |" in PROTOCOL


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
    "reply": {"call": COUNT, "ok": BOOL},
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
        "peak": COUNT,
    },
    "value": {},
    "variables": {},
    "failed": {"kind": [*TEXT, "", "other"], "message": TEXT},
}
FIELDS = [(kind, field) for kind, fields in WRONG.items() for field in fields]


def example(kind: str) -> tuple[dict[str, Any], bytes]:
    """Header and blob of a message with as much in it as there can be."""
    frame = frame_of(max(EXAMPLES[kind], key=lambda message: len(encode(message))))
    return json.loads(frame.header), frame.blob


def test_every_field_of_every_header_is_tried():
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
def test_an_unknown_type_is_refused_in_few_words(kind):
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
def test_a_header_with_a_field_that_nobody_knows_is_refused(kind, more):
    if kind in WRONG:
        header, blob = example(kind)
        for name in ("more", "Type", "", "cells", "__class__"):
            refused(make({**header, name: more}, blob), "a field that the message does not have")


@pytest.mark.parametrize("kind", FROM_WORKER)
def test_a_header_is_counted_and_measured_before_it_is_parsed(kind):
    header, blob = example(kind)
    whole, form = json.dumps(header).encode()[:-1], FORMS[kind]
    no_json = b'"more": ]' + b" " * form.size  # what a parser would complain of first
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


def test_of_a_field_given_twice_the_last_one_counts():
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


# ── blobs ────────────────────────────────────────────────────────────────────────────────────────


def result(blob: bytes, **fields: Any) -> Frame:
    header = {"type": "result", "cell": 1, "value": None, "error": None}
    return make({**header, "changes": [], "figures": [], "peak": 0, **fields}, blob)


@pytest.mark.parametrize(
    ("blob", "fields"),
    [
        (b"x", {}),
        (b"", {"value": 1}),
        (b"abc", {"value": 2}),
        (PNG, {"figures": [len(PNG) - 1]}),
        (PNG, {"figures": [len(PNG) + 1]}),
        (PNG, {"figures": [len(PNG), 1]}),
        (PNG + PNG, {"figures": [len(PNG)]}),
        (b"v" + PNG, {"value": 2, "figures": [len(PNG)]}),
        (PNG, {"figures": [len(PNG), (1 << 63) - 1]}),
    ],
)
def test_parts_of_a_result_that_do_not_add_up_to_its_blob_are_refused(blob, fields):
    refused(result(blob, **fields), "malformed result")


@pytest.mark.parametrize("figure", [b"", b"GIF89a..", PNG[1:], PNG[:7], b"<svg/>", b" " + PNG])
def test_a_figure_that_is_not_a_png_is_refused(figure):
    refused(result(figure, figures=[len(figure)]), "not a PNG")


@pytest.mark.parametrize(
    ("field", "most", "item"),
    [("changes", MAX_CHANGES, ["new", "x", "int", 1, "1"]), ("figures", MAX_FIGURES, len(PNG))],
)
def test_a_list_may_be_as_long_as_its_limit_and_no_longer(field, most, item):
    blob = PNG * most if field == "figures" else b""
    assert len(getattr(decode(result(blob, **{field: [item] * most})), field)) == most
    refused(result(blob, **{field: [item] * (most + 1)}), field)


def test_more_variables_than_the_limit_are_refused():
    row = ["x", "int", 28, "6"]
    refused(
        make({"type": "variables"}, json.dumps([row] * (MAX_VARIABLES + 1)).encode()), "at most"
    )


def test_a_displayed_value_that_is_not_utf8_is_refused():
    refused(result(b"\xff\xfe", value=2), "malformed result")


@pytest.mark.parametrize(
    "blob", [b"", b"{}", b'"x"', b"[1]", b'[["f"]]', b'[["f","",1]]', b"[[1,2]]"]
)
def test_functions_that_are_not_names_with_texts_are_refused(blob):
    refused(configure(blob, len(blob)))


@pytest.mark.parametrize("rows", [[], [["x", "str", 3]], [["x", "str", 2], ["y", "bytes", 1]]])
def test_what_a_session_begins_with_is_all_that_follows_its_functions(rows):
    refused(configure(b"[]abcd", 2, rows), "more data")
    refused(configure(b"[]ab", 2, [["x", "str", 3]]))


def configure(blob, functions, variables=()):
    header = {"type": "configure", "seed": None, "answers": None}
    return make({**header, "functions": functions, "variables": list(variables)}, blob)


@pytest.mark.parametrize("blob", [b"", b"a", b"ab", b"ab1x", b"abNaN", b"ab1e999", b"\xff\xff1"])
def test_an_answer_whose_blob_is_not_its_texts_and_json_is_refused(blob):
    header = {"type": "answered", "call": 1, "cell": 1, "form": "FINAL", "text": 1, "printed": 1}
    assert decode(make(header, b"ab1")) == Answered(1, 1, Answer("FINAL", "a", 1, "b"))
    refused(make(header, blob))


# ── text ─────────────────────────────────────────────────────────────────────────────────────────

ODD = "a\ud800b\udfffc 🐍"
CLEAN = "a\ufffdb\ufffdc 🐍"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (Fetch(ODD), Fetch(CLEAN)),
        (Failed("unknown", ODD), Failed("unknown", CLEAN)),
        (
            Result(1, ODD, ErrorInfo(ODD, ODD, ODD, 1), (Change("new", ODD, ODD, 1, ODD),), (), 0),
            Result(
                1,
                CLEAN,
                ErrorInfo(CLEAN, CLEAN, CLEAN, 1),
                (Change("new", CLEAN, CLEAN, 1, CLEAN),),
                (),
                0,
            ),
        ),
        (
            Answered(1, 1, Answer("FINAL", ODD, {ODD: [ODD]}, ODD)),
            Answered(1, 1, Answer("FINAL", CLEAN, {CLEAN: [CLEAN]}, CLEAN)),
        ),
        (
            Variables((Variable(ODD, ODD, 1, ODD),)),
            Variables((Variable(CLEAN, CLEAN, 1, CLEAN),)),
        ),
        (Configure((FunctionSchema(ODD, ODD),)), Configure((FunctionSchema(CLEAN, CLEAN),))),
    ],
)
def test_lone_surrogates_arrive_as_replacement_characters(sent, taken):
    assert decode(frame_of(sent)) == taken


@pytest.mark.parametrize("escape", ["\\ud800", "\\uD800", "\\udC00", "\\uDfff"])
def test_an_escaped_lone_surrogate_is_replaced_however_it_is_spelt(escape):
    assert parse_json(f'{{"{escape}":["{escape}"]}}'.encode()) == {"\ufffd": ["\ufffd"]}


def test_an_escaped_pair_is_one_character():
    assert parse_json(b'"\\ud83d\\udc0d \\ud800"') == "🐍 \ufffd"


# ── what a cell can make large, its own worker cuts ──────────────────────────────────────────────


def test_names_and_messages_of_any_length_are_cut_to_what_the_protocol_carries():
    long = "🐍" * 3_000_000
    taken = decode(frame_of(Result(1, None, None, (Change("new", long, "int", 1, "1"),), (), 0)))
    assert taken == Result(1, None, None, (Change("new", long[:MAX_NAME], "int", 1, "1"),), (), 0)
    taken = decode(frame_of(Variables((Variable(long, "int", 1, "1"),))))
    assert taken == Variables((Variable(long[:MAX_NAME], "int", 1, "1"),))
    assert decode(frame_of(Failed("not json", long))) == Failed("not json", long[:MAX_MESSAGE])


@pytest.mark.parametrize("number", [-1, MAX_COUNT, 10**5000], ids=["negative", "huge", "absurd"])
def test_numbers_that_a_cell_made_up_do_not_break_the_protocol(number):
    error = ErrorInfo("SyntaxError", "", "", number)
    sent = Result(1, None, error, (Change("new", "x", "ndarray", number, ""),), (), 0)
    taken = decode(frame_of(sent))
    assert isinstance(taken, Result)
    assert taken.error == ErrorInfo("SyntaxError", "", "", None)
    assert taken.changes == (Change("new", "x", "ndarray", 0, ""),)


def test_of_too_many_variables_the_first_are_sent():
    rows = tuple(Variable(f"x{n}", "int", 28, "1") for n in range(MAX_VARIABLES + 1))
    assert decode(frame_of(Variables(rows))) == Variables(rows[:MAX_VARIABLES])


def test_the_largest_result_that_a_worker_makes_fits():
    """200 changes and the note of more, each part as long as it gets, all of it escaped."""
    change = Change("modified", "🐍" * MAX_NAME, "🐍" * 100, MAX_COUNT - 1, "🐍" * 120)
    error = ErrorInfo("🐍" * 200, "🐍" * 4_096, "🐍" * (17 << 10), 1)
    sent = Result(1, "🐍" * (1 << 20), error, (change,) * 201, (PNG,) * 10, 1)
    assert decode(frame_of(sent)) == sent


def test_an_answer_of_eight_mebibytes_fits_whatever_characters_it_is_made_of():
    text = "\x00" * (8 << 20)
    sent = Answered(1, 1, Answer("FINAL", text, text))
    assert decode(frame_of(sent)) == sent


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


def test_the_value_of_an_answer_that_json_cannot_carry_is_none_and_its_text_is_kept():
    (deep, *_) = nested(MAX_DEPTH + 1)
    sent = Answered(1, 1, Answer("FINAL", "deep", deep))
    assert decode(frame_of(sent)) == Answered(1, 1, Answer("FINAL", "deep", None))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), 1j, {1: 2}])
def test_what_json_cannot_carry_is_not_sent(value):
    with pytest.raises((TypeError, ValueError)):
        dump_json([value])

"""Blobs of messages: their parts, text and limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repl_sandbox.protocol.frames import (
    MAX_CHANGES,
    MAX_DISPLAYS,
    MAX_FIGURES,
    MAX_MESSAGE,
    MAX_NAME,
    Frame,
)
from repl_sandbox.protocol.messages import (
    MAX_COUNT,
    MAX_DISPLAY_BYTES,
    MAX_VARIABLES,
    Answered,
    Configure,
    Failed,
    Fetch,
    FunctionSchema,
    Result,
    Variables,
    decode,
)
from repl_sandbox.protocol.values import parse_json
from repl_sandbox.types import Answer, Change, ErrorInfo, Variable
from tests.sandbox.protocol.message_examples import (
    PNG,
    frame_of,
    make,
    refused,
)

# ── blobs ────────────────────────────────────────────────────────────────────────────────────────


def result(blob: bytes, **fields: Any) -> Frame:
    header = {"type": "result", "cell": 1, "value": None, "error": None}
    return make({**header, "changes": [], "figures": [], "displays": [], "peak": 0, **fields}, blob)


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
        (b"abc", {"displays": [[True, [["", 1], ["text/html", 1]]]]}),
        (b"abc", {"displays": [[True, [["", 1], ["text/html", 3]]]]}),
    ],
)
def test_parts_of_a_result_that_do_not_add_up_to_its_blob_are_refused(blob, fields):
    refused(result(blob, **fields), "malformed result")


@pytest.mark.parametrize("figure", [b"", b"GIF89a..", PNG[1:], PNG[:7], b"<svg/>", b" " + PNG])
def test_a_figure_that_is_not_a_png_is_refused(figure):
    refused(result(figure, figures=[len(figure)]), "not a PNG")


def test_displays_of_more_bytes_than_the_limit_are_refused():
    size = MAX_DISPLAY_BYTES // 2 + 1
    displays = [[False, [["", size], ["text/html", size]]]]
    refused(result(b"x" * 2 * size, displays=displays), "too large")


@pytest.mark.parametrize(
    ("field", "most", "item"),
    [
        ("changes", MAX_CHANGES, ["new", "x", "int", 1, "1"]),
        ("figures", MAX_FIGURES, len(PNG)),
        ("displays", MAX_DISPLAYS, [False, [["", 0], ["text/html", 0]]]),
    ],
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
def test_the_first_variables_follow_the_functions_of_a_configuration(rows):
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


def test_long_names_and_messages_are_truncated_to_the_limit():
    long = "🐍" * 3_000_000
    taken = decode(frame_of(Result(1, None, None, (Change("new", long, "int", 1, "1"),), (), 0)))
    assert taken == Result(1, None, None, (Change("new", long[:MAX_NAME], "int", 1, "1"),), (), 0)
    taken = decode(frame_of(Variables((Variable(long, "int", 1, "1"),))))
    assert taken == Variables((Variable(long[:MAX_NAME], "int", 1, "1"),))
    assert decode(frame_of(Failed("not json", long))) == Failed("not json", long[:MAX_MESSAGE])


@pytest.mark.parametrize("number", [-1, MAX_COUNT, 10**5000], ids=["negative", "huge", "absurd"])
def test_forged_numbers_do_not_break_the_protocol(number):
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
    """200 changes and the note about more, each field at its longest, all escaped."""
    change = Change("modified", "🐍" * MAX_NAME, "🐍" * 100, MAX_COUNT - 1, "🐍" * 120)
    error = ErrorInfo("🐍" * 200, "🐍" * 4_096, "🐍" * (17 << 10), 1)
    sent = Result(1, "🐍" * (1 << 20), error, (change,) * 201, (PNG,) * 10, 1)
    assert decode(frame_of(sent)) == sent


def test_an_answer_of_eight_mebibytes_fits_with_any_characters():
    text = "\x00" * (8 << 20)
    sent = Answered(1, 1, Answer("FINAL", text, text))
    assert decode(frame_of(sent)) == sent

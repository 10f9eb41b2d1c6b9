"""Decoding of frames, without a socket."""

import json

import pytest

from repl_env.common.values import MAX_DEPTH
from repl_env.models import REPLAction
from repl_server.protocol import ClientRequest, FrameCodec, InvalidFrame

PLAIN = FrameCodec(REPLAction)
NAMED = FrameCodec(REPLAction, is_v1=True)


def test_a_step_is_read_into_its_action():
    asked = PLAIN.read('{"type": "step", "data": {"code": "x = 1"}}')

    assert isinstance(asked, ClientRequest)
    assert asked.data == REPLAction(code="x = 1")
    assert asked.id is None and asked.timeout_s is None and not asked.stream


def test_a_named_step_has_an_id_a_limit_and_a_stream():
    asked = NAMED.read(
        '{"type": "step", "id": "1", "data": {"code": "1"}, "timeout_s": 2, "stream": true}'
    )

    assert isinstance(asked, ClientRequest)
    assert (asked.id, asked.timeout_s, asked.stream) == ("1", 2.0, True)


@pytest.mark.parametrize("type", ["reset", "state", "close"])
def test_data_may_be_left_out_where_none_is_needed(type):
    asked = PLAIN.read(json.dumps({"type": type}))

    assert isinstance(asked, ClientRequest)
    assert asked.type == type


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b'{"type": "state"}', "INVALID_JSON"),
        (None, "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("{", "INVALID_JSON"),
        ("[1, 2]", "INVALID_JSON"),
        ("null", "INVALID_JSON"),
        ('"state"', "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"context": [Infinity]}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"expected_answer": 1e999}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"context": [{"a": -1e999}]}}', "INVALID_JSON"),
        ('{"type": "step", "data": {"code": "\\ud800"}}', "INVALID_JSON"),
        ('{"type": "reset", "data": ' + '{"a":' * 64 + "1" + "}" * 65, "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ('{"type": "reset", "data": {"context": ' + "[" * 100_000, "INVALID_JSON"),
        ("{}", "VALIDATION_ERROR"),
        ('{"type": 5}', "VALIDATION_ERROR"),
        ('{"type": "stepp"}', "UNKNOWN_TYPE"),
        ('{"type": "' + "x" * 10_000 + '"}', "UNKNOWN_TYPE"),
        ('{"type": "variables"}', "UNKNOWN_TYPE"),
        ('{"type": "open"}', "UNKNOWN_TYPE"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"code": []}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"code": "1", "cod": "2"}}', "VALIDATION_ERROR"),
        ('{"type": "state", "data": {"a": 1}}', "VALIDATION_ERROR"),
        ('{"type": "state", "id": "1"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"code": "1"}, "timeout_s": 1}', "VALIDATION_ERROR"),
    ],
)
def test_an_invalid_request_is_refused(frame, code):
    asked = PLAIN.read(frame)

    assert isinstance(asked, InvalidFrame)
    assert asked.refusal.code == code
    assert len(asked.refusal.message) < 300


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "state"},
        {"type": "state", "id": ""},
        {"type": "state", "id": "x" * 65},
        {"type": "state", "id": 7},
        {"type": "state", "id": "1", "timeout_s": 1},
        {"type": "step", "id": "1", "data": {"code": "1"}, "timeout_s": 0},
        {"type": "step", "id": "1", "data": {"code": "1"}, "timeout_s": "soon"},
        {"type": "step", "id": "1", "data": {"code": "1"}, "stream": "yes"},
        {"type": "cancel", "id": "1", "data": {}},
        {"type": "cancel", "id": "1", "data": {"request": 1}},
        {"type": "resume", "id": "1", "data": {"token": "x" * 300}},
        {"type": "branch", "id": "1", "data": {"seed": -1}},
        {"type": "rollback", "id": "1", "data": {"cells": 0}},
        {"type": "follow_up", "id": "1", "data": {"max_iterations": 0}},
    ],
)
def test_fields_of_named_requests_are_checked(frame):
    asked = NAMED.read(json.dumps(frame))

    assert isinstance(asked, InvalidFrame)
    assert asked.refusal.code == "VALIDATION_ERROR"
    assert asked.refusal.details["errors"]


def test_an_error_has_the_id_if_valid():
    assert NAMED.read('{"type": "nope", "id": "7"}').id == "7"
    assert NAMED.read('{"type": "nope", "id": {}}').id is None
    assert PLAIN.read('{"type": "nope", "id": "7"}').id is None


def test_the_maximum_depth():
    inner = MAX_DEPTH - 2
    frame = '{"type": "reset", "data": {"context": ' + "[" * inner + "]" * inner + "}}"

    assert isinstance(PLAIN.read(frame), ClientRequest)


def test_a_wide_frame_is_not_a_deep_one():
    frame = json.dumps({"type": "reset", "data": {"context": [[] for _ in range(10_000)]}})

    assert isinstance(PLAIN.read(frame), ClientRequest)


def test_a_validation_error_does_not_repeat_what_was_sent():
    secret = "hf_secret"
    asked = NAMED.read(
        json.dumps({"type": "step", "id": "1", "data": {"code": "1", "hf": secret}, "stream": True})
    )

    assert isinstance(asked, InvalidFrame)
    assert secret not in json.dumps(asked.refusal.data())

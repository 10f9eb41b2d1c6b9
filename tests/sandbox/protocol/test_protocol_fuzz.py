"""Any bytes of a worker yield messages or a protocol error on the host.

The session goes on in either case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from repl_sandbox import Limits, Session
from repl_sandbox.errors import RemoteProtocolError, SandboxError
from repl_sandbox.protocol.connection import HostConnection, WorkerConnection
from repl_sandbox.protocol.frames import LENGTHS, MAX_BLOB, MAX_HEADER, Frame, pack
from repl_sandbox.protocol.messages import (
    MAX_COUNT,
    VERSION,
    Answered,
    Execute,
    Failed,
    Fetch,
    HostCall,
    HostMessage,
    Ready,
    Restored,
    Result,
    Value,
    Variables,
    WorkerMessage,
    decode,
    encode,
)
from repl_sandbox.protocol.values import RawArgument, each_part, parse_json
from repl_sandbox.session.host_functions import arguments
from repl_sandbox.types import (
    DISPLAY_FORMS,
    Answer,
    AnswerForm,
    Change,
    Display,
    ErrorInfo,
    Variable,
)

PNG = b"\x89PNG\r\n\x1a\n and the rest"
READY = Ready(VERSION)
RESULT = Result(
    1,
    "'größe'",
    ErrorInfo("E", "m", "t", 1),
    (Change("new", "x", "int", 28, "1"), Change("deleted", "y", "str", 50, "''")),
    (PNG, PNG),
    9,
    (Display("größe", {"text/html": "<b>größe</b>"}, is_value=True), Display("x", {})),
)
CALLS: list[WorkerMessage] = [
    HostCall(1, 1, "llm_query", b'[["hi"],{}]'),
    HostCall(
        3,
        1,
        "llm_query",
        b'[[null],{"context":null}]',
        (
            (0, RawArgument("bytes", b"\x00")),
            ("context", (RawArgument("str", "größe".encode()), None)),
        ),
    ),
    Answered(2, 1, Answer("printed", "größe", {"a": [1.5, None]}, "FINAL(größe)")),
]
# Messages of the host, and the worker's possible messages until the host sends again.
TURNS: list[tuple[list[HostMessage], list[WorkerMessage]]] = [
    ([], [READY, *CALLS]),
    ([Execute(1, b"")], [*CALLS, *CALLS, RESULT, *CALLS]),
    ([Fetch("x")], [*CALLS, Value(b"[1]")]),
    ([Fetch("x")], [Failed("unknown", "x")]),
    ([Fetch("x")], [Variables((Variable("x", "int", 28, "1"),))]),
]

# ── the types of what is decoded, written down a second time ─────────────────────────────────────


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    value.encode()  # raises where a lone surrogate is left
    return True


def is_bytes(value: object) -> bool:
    return type(value) is bytes


def is_json(value: object) -> bool:
    return bool(json.loads(json.dumps(value, allow_nan=False)) == value)


def is_optional(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def is_one_of(*values: str) -> Callable[[object], bool]:
    return lambda value: type(value) is str and value in values


def is_forms(value: object) -> bool:
    """Return whether `value` has the forms of a display: texts by MIME type."""
    return type(value) is dict and all(
        form in DISPLAY_FORMS and is_text(text) for form, text in value.items()
    )


def is_each(cls: type, *checks: Callable[[object], bool]) -> Callable[[object], bool]:
    """A tuple of frozen `cls`, each of whose fields passes its check."""
    return lambda value: type(value) is tuple and all(is_a(item, cls, *checks) for item in value)


def is_a(value: object, cls: type, *checks: Callable[[object], bool]) -> bool:
    fields = [getattr(value, name) for name in cls.__slots__]  # type: ignore[attr-defined]
    return type(value) is cls and all(
        check(field) for check, field in zip(checks, fields, strict=True)
    )


def are_parts(value: object) -> bool:
    return type(value) is tuple and all(
        (is_count(place) or is_text(place))
        and (
            all(part is None or is_part(part) for part in raw)
            if type(raw) is tuple
            else is_part(raw)
        )
        for place, raw in value
    )


def is_part(value: object) -> bool:
    return is_a(value, RawArgument, is_one_of("str", "bytes"), is_bytes)


DECLARED: dict[type, list[Callable[[object], bool]]] = {
    Ready: [is_count],
    Restored: [is_count, lambda lost: type(lost) is tuple and all(is_text(text) for text in lost)],
    HostCall: [is_count, is_count, is_text, is_bytes, are_parts],
    Answered: [
        is_count,
        is_count,
        lambda a: is_a(
            a, Answer, is_one_of(*get_args(AnswerForm)), is_text, is_json, is_optional(is_text)
        ),
        is_count,
    ],
    Result: [
        is_count,
        is_optional(is_text),
        is_optional(lambda e: is_a(e, ErrorInfo, is_text, is_text, is_text, is_optional(is_count))),
        is_each(
            Change, is_one_of("new", "modified", "deleted"), is_text, is_text, is_count, is_text
        ),
        lambda figures: type(figures) is tuple and all(f.startswith(PNG[:8]) for f in figures),
        is_count,
        is_each(Display, is_text, is_forms, lambda flag: type(flag) is bool),
    ],
    Value: [is_bytes],
    Variables: [is_each(Variable, is_text, is_text, is_count, is_text)],
    Failed: [is_one_of("unknown", "not json", "too large"), is_text],
}


def test_the_fuzzer_knows_the_types_of_every_worker_message():
    assert DECLARED.keys() == set(get_args(WorkerMessage))


def listen(connection: Any, chunks: list[bytes]) -> bool:
    """Feed `chunks`; return whether the connection accepts more. Other errors fail the test."""
    fed = 0
    for chunk in chunks:
        fed += len(chunk)
        try:
            for message in connection.receive(chunk):
                if isinstance(connection, HostConnection):
                    assert is_a(message, type(message), *DECLARED[type(message)])
        except RemoteProtocolError:
            assert connection.buffered == 0
            return False
        assert connection.buffered <= min(fed, LENGTHS.size + MAX_HEADER + MAX_BLOB)
    return True


def connected(turn: int) -> HostConnection:
    """Return a host's connection after the earlier turns, and its own part of this one."""
    host = HostConnection()
    for number, (said, heard) in enumerate(TURNS[: turn + 1]):
        for message in said:
            host.send(message)
        if number < turn:
            assert listen(host, [encode(message) for message in heard])
    return host


def cut(data: bytes, places: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


turns = st.integers(0, len(TURNS) - 1)
cuts = st.lists(st.integers(0, 1 << 12), max_size=20)
many = settings(max_examples=400, deadline=None)

# ── properties ───────────────────────────────────────────────────────────────────────────────────


@given(turns, cuts)
@settings(deadline=None)
def test_every_conversation_is_accepted_with_any_chunk_boundaries(turn, places):
    """Otherwise the mutations below would mutate broken input."""
    data = b"".join(encode(message) for message in TURNS[turn][1])
    assert listen(connected(turn), cut(data, places))


@pytest.mark.parametrize("connection", [HostConnection, WorkerConnection])
@given(st.lists(st.binary(max_size=64), max_size=8))
@settings(deadline=None)
def test_random_bytes_are_incomplete_or_refused(connection, chunks):
    listen(connection(), chunks)


@given(turns, st.binary(max_size=200), st.binary(max_size=200), cuts)
@many
def test_random_bytes_within_a_frame_are_incomplete_or_refused(turn, header, blob, places):
    listen(connected(turn), cut(pack(header, blob), places))


mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "swap"]),
        st.integers(0, 1 << 12),
        st.integers(0, 64),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def mutate(data: bytes, how: str, place: int, length: int, junk: bytes) -> bytes:
    place %= len(data) + 1
    stop = place + length
    return {
        "flip": lambda: (
            data[:place] + bytes([data[place] ^ junk[0]]) + data[place + 1 :]
            if place < len(data)
            else data
        ),
        "insert": lambda: data[:place] + junk + data[place:],
        "delete": lambda: data[:place] + data[stop:],
        "repeat": lambda: data[:stop] + data[place:],
        "swap": lambda: data[stop:] + data[:stop],
    }[how]()


@given(turns, mutations, cuts)
@many
def test_a_valid_conversation_with_changed_bytes_is_accepted_or_refused(turn, changes, places):
    data = b"".join(encode(message) for message in TURNS[turn][1])
    for change in changes:
        data = mutate(data, *change)
    listen(connected(turn), cut(data, places))


# Changed bytes of headers are rarely JSON; these stay JSON and change the content.
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, len(PNG), 2**63 - 1, 2**63, 10**400])
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.sampled_from(["new", "FINAL", "unknown", "ready", "result", "\ud800"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def header_of(message: WorkerMessage) -> tuple[dict[str, Any], bytes]:
    data = encode(message)
    size, _ = LENGTHS.unpack_from(data)
    return json.loads(data[LENGTHS.size :][:size]), data[LENGTHS.size + size :]


@given(turns, st.data())
@many
def test_a_valid_message_with_changed_fields_is_accepted_or_refused(turn, data):
    header, blob = header_of(data.draw(st.sampled_from(TURNS[turn][1])))
    for field in data.draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=2)):
        header[field] = data.draw(values)
    listen(
        connected(turn), [pack(json.dumps(header).encode(), data.draw(st.just(blob) | st.binary()))]
    )


@given(st.data())
@many
def test_a_result_with_changed_rows_is_accepted_or_refused(data):
    header, blob = header_of(RESULT)
    displays = [*header["displays"], *(sizes for _, sizes in header["displays"])]
    rows = [header["error"], *header["changes"], header["figures"], *displays]
    row = data.draw(st.sampled_from(rows))
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(values)
    listen(connected(1), [pack(json.dumps(header).encode(), blob)])


@given(st.data())
@many
def test_a_call_with_changed_parts_is_accepted_or_refused(data):
    header, blob = header_of(CALLS[1])
    row = data.draw(st.sampled_from([header["parts"][0], *header["parts"][1][2], header["parts"]]))
    if row is not None:
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(values)
    frame = pack(json.dumps(header).encode(), data.draw(st.just(blob) | st.binary()))
    listen(connected(1), [frame])
    try:
        call = decode(Frame(frame[LENGTHS.size :][: LENGTHS.unpack_from(frame)[0]], blob))
        assert isinstance(call, HostCall)
        sizes = [len(part.data) for _, raw in call.parts for part in each_part(raw)]
        assert len(call.data) + sum(sizes) == len(blob)
        arguments(call, frozenset([0, "context"]))
    except RemoteProtocolError:
        pass


@given(st.binary(max_size=100) | values.map(lambda value: json.dumps(value).encode()))
@many
def test_bulk_json_is_json_or_refused(data):
    try:
        assert is_json(parse_json(data))
    except RemoteProtocolError:
        pass


# ── in sessions ──────────────────────────────────────────────────────────────────────────────────

# The cell's writes to its worker's socket; its next action; the host's next request.
WAYS = (
    "os.write(1000, data)",
    "for byte in data: os.write(1000, bytes([byte]))",
    "threading.Thread(target=os.write, args=(1000, data)).start()",
    "if os.fork() == 0: os.write(1000, data); signal.pause()",
)
ENDS = (
    "",
    "1 / 0",
    "os._exit(3)",
    "while True: pass",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nsignal.pause()",
    "print('x' * 100_000)",
)
QUESTIONS: tuple[Callable[[Session], object], ...] = (
    lambda session: session.get("x"),
    lambda session: session.set("x", 1),
    lambda session: session.variables(),
    lambda session: session.rollback(1),
    lambda session: session.branch().close(),
)


@given(
    turns,
    mutations | st.just([]),
    st.sampled_from(WAYS),
    st.sampled_from(ENDS),
    st.sampled_from(QUESTIONS),
)
@settings(
    max_examples=30, phases=[Phase.generate]
)  # each may wait for time-outs: none is made shorter
def test_a_session_goes_on_whatever_its_worker_sends(sandbox, turn, changes, way, end, question):
    data = b"".join(encode(message) for message in TURNS[turn][1])
    for change in changes:
        data = mutate(data, *change)
    code = f"import os, signal, threading\ndata = {data!r}\n{way}\n{end}"
    with sandbox.session(host={"llm_query": str}, limits=Limits(timeout=60, grace=0.1)) as session:
        session.run(code, timeout=0.3)
        session.run("x = 1", timeout=0.3)  # an unfinished request ends here
        with suppress(SandboxError, KeyError, TypeError, ValueError):
            question(session)
        session.run("import os\nos._exit(0)", timeout=0.3)  # and so does running code
        assert session.run("llm_query(6 * 7)").value == "'42'"

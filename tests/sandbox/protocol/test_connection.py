"""Both ends of a connection, in memory: legal messages arrive, illegal ones are refused."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any, get_args

import pytest

from repl_sandbox.errors import LocalProtocolError, RemoteProtocolError
from repl_sandbox.protocol.connection import (
    TRANSITIONS,
    HostConnection,
    ProtocolPhase,
    WorkerConnection,
)
from repl_sandbox.protocol.frames import LENGTHS, MAX_BLOB, MAX_HEADER
from repl_sandbox.protocol.messages import (
    VERSION,
    Answered,
    Assign,
    Configure,
    Execute,
    Failed,
    Fetch,
    FunctionSchema,
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
    WorkerMessage,
    encode,
)
from repl_sandbox.types import Answer, Change, ErrorInfo, Variable

PNG = b"\x89PNG\r\n\x1a\n and the rest"

# A whole exchange with every message in it.
TALK: list[Message] = [
    Ready(VERSION),
    Restored(3, ("thread 'sleeper'", "descriptor 4, a pipe")),
    Configure(
        (FunctionSchema("llm_query", "Ask."), FunctionSchema("größe")),
        7,
        "compatible",
        (Assign("context", "str", b"text"),),
    ),
    Execute(1, b"x = llm_query('hi')\nFINAL(x)"),
    HostCall(1, 1, "llm_query", b'[["hi"],{}]'),
    HostReply(1, True, b'"hello"'),
    Answered(2, 1, Answer("FINAL", "hello", "hello")),
    HostReply(2, False, b'["ValueError","too short"]'),
    Result(
        1,
        "'hello'",
        ErrorInfo("ValueError", "too short", "Traceback …\n", 2),
        (Change("new", "x", "str", 54, "'hello'"),),
        (PNG, PNG + b"2"),
        9_000_000,
    ),
    HostCall(3, 1, "llm_query", b'[["late"],{}]'),
    HostReply(3, False, b'["Cancelled","the cell has ended"]'),
    Assign("text", "str", "größe".encode()),
    Value(b"null"),
    Assign("big", "bytes", b"", 1 << 30),
    Failed("too large", "MemoryError: "),
    Fetch("x"),
    Value(b'"hello"'),
    ListVariables(),
    Variables((Variable("x", "str", 54, "'hello'"),)),
    Save((1 << 53) - 1, 1 << 28),
    Result((1 << 53) - 1, '{"variables":[]}', None, (), (), 9_000_000),
    Load((1 << 53) - 1, b'{"variables":[]}'),
    Result((1 << 53) - 1, "[]", None, (), (), 9_000_000),
]
EXAMPLES: dict[type, Message] = {type(message): message for message in TALK}
FROM_HOST = frozenset(get_args(HostMessage))
FROM_WORKER = frozenset(get_args(WorkerMessage))
# The messages that lead to each phase.
WAY: dict[ProtocolPhase, list[Message]] = {
    ProtocolPhase.BOOTING: [],
    ProtocolPhase.IDLE: [Ready(VERSION)],
    ProtocolPhase.RUNNING: [Ready(VERSION), Execute(1, b"")],
    ProtocolPhase.ASKING: [Ready(VERSION), Fetch("x")],
}
ILLEGAL = [
    pytest.param(phase, message, id=f"{message.__name__}-{phase.name}")
    for phase, message in product(ProtocolPhase, EXAMPLES)
    if message not in TRANSITIONS[phase]
]


class Pair:
    """A host's and a worker's end, and the channel between them."""

    def __init__(self, phase: ProtocolPhase = ProtocolPhase.BOOTING, chunk: int = 1 << 20) -> None:
        self.host = HostConnection()
        self.worker = WorkerConnection()
        self.chunk = chunk
        for message in WAY[phase]:
            assert self.say(message) == [message]
        assert self.host.phase is self.worker.phase is phase

    def say(self, message: Message) -> list[Message]:
        """Send `message` from its side; return the messages that arrive at the other."""
        ends: tuple[Any, Any] = (self.host, self.worker)
        speaker, listener = ends if type(message) in FROM_HOST else reversed(ends)
        data = speaker.send(message)
        found: list[Message] = []
        for start in range(0, len(data), self.chunk):
            found += listener.receive(data[start : start + self.chunk])
        return found


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_every_message_arrives_as_it_was_sent_in_any_chunking(chunk):
    assert set(EXAMPLES) == FROM_HOST | FROM_WORKER
    pair = Pair(chunk=chunk)
    for message in TALK:
        assert pair.say(message) == [message]
        assert pair.host.phase is pair.worker.phase
    assert pair.host.buffered == pair.worker.buffered == 0


def test_several_messages_in_one_chunk_come_one_by_one():
    pair = Pair(ProtocolPhase.RUNNING)
    said = [EXAMPLES[HostCall], EXAMPLES[Answered], EXAMPLES[Result]]
    data = b"".join(pair.worker.send(message) for message in said)
    assert list(pair.host.receive(data)) == said


def test_the_host_may_reply_between_the_messages_of_one_chunk():
    """A result changes the phase only when it is consumed, not when its bytes arrive."""
    pair = Pair(ProtocolPhase.RUNNING)
    data = pair.worker.send(EXAMPLES[HostCall]) + pair.worker.send(EXAMPLES[Result])
    messages = iter(pair.host.receive(data))
    assert next(messages) == EXAMPLES[HostCall]
    phases = [pair.host.phase]
    assert pair.host.send(EXAMPLES[HostReply])
    assert next(messages) == EXAMPLES[Result]
    phases.append(pair.host.phase)
    assert phases == [ProtocolPhase.RUNNING, ProtocolPhase.IDLE]


# ── illegal in this phase ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("phase", "kind"), ILLEGAL)
def test_a_message_outside_the_table_is_not_sent(phase, kind):
    pair = Pair(phase)
    speaker = pair.host if kind in FROM_HOST else pair.worker
    with pytest.raises(LocalProtocolError, match=f"{kind.__name__} while {phase.name}"):
        speaker.send(EXAMPLES[kind])
    assert speaker.phase is phase


@pytest.mark.parametrize(("phase", "kind"), ILLEGAL)
def test_a_message_outside_the_table_is_refused_on_arrival(phase, kind):
    pair = Pair(phase)
    listener = pair.worker if kind in FROM_HOST else pair.host
    with pytest.raises(RemoteProtocolError, match=f"{kind.__name__} while {phase.name}"):
        list(listener.receive(encode(EXAMPLES[kind])))
    assert listener.phase is phase


def test_the_phase_after_a_message_is_the_tables():
    for phase, row in TRANSITIONS.items():
        for kind, after in row.items():
            pair = Pair(phase)
            assert pair.say(EXAMPLES[kind]) == [EXAMPLES[kind]]
            assert pair.host.phase is pair.worker.phase is after


# ── the wrong side ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", ProtocolPhase)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_neither_side_sends_messages_of_the_other(phase, kind):
    pair = Pair(phase)
    speaker = pair.worker if kind in FROM_HOST else pair.host
    with pytest.raises(LocalProtocolError, match="by the other side only"):
        speaker.send(EXAMPLES[kind])


@pytest.mark.parametrize("phase", ProtocolPhase)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_neither_side_accepts_its_own_messages(phase, kind):
    pair = Pair(phase)
    listener = pair.host if kind in FROM_HOST else pair.worker
    with pytest.raises(RemoteProtocolError, match=f"{kind.__name__} (from the wrong side|while)"):
        list(listener.receive(encode(EXAMPLES[kind])))


# ── after a breach ───────────────────────────────────────────────────────────────────────────────


def test_after_a_breach_nothing_is_accepted():
    host = Pair(ProtocolPhase.IDLE).host
    with pytest.raises(RemoteProtocolError):
        list(host.receive(LENGTHS.pack(MAX_HEADER + 1, 0) + bytes(1000)))
    assert host.buffered == 0
    for _ in range(3):
        with pytest.raises(RemoteProtocolError):
            list(host.receive(encode(EXAMPLES[HostCall])))
        assert host.buffered == 0


def test_messages_before_a_breach_in_its_chunk_are_returned():
    host = Pair(ProtocolPhase.IDLE).host
    messages = iter(host.receive(encode(EXAMPLES[HostCall]) + encode(EXAMPLES[Result])))
    assert next(messages) == EXAMPLES[HostCall]
    with pytest.raises(RemoteProtocolError):
        next(messages)


def test_a_message_too_large_to_send_is_a_local_error_and_changes_nothing():
    pair = Pair(ProtocolPhase.RUNNING)
    with pytest.raises(LocalProtocolError, match="limits are"):
        pair.worker.send(HostCall(1, 1, "f", bytes(MAX_BLOB + 1)))
    assert pair.say(EXAMPLES[Result]) == [EXAMPLES[Result]]


def test_a_worker_that_announces_the_largest_blob_fills_no_more_memory_than_it_sends():
    host = Pair(ProtocolPhase.RUNNING).host
    chunk = bytes(1 << 12)
    tracemalloc.start()
    try:
        assert list(host.receive(LENGTHS.pack(MAX_HEADER, MAX_BLOB))) == []
        for count in range(1, 257):
            assert list(host.receive(chunk)) == []
            assert host.buffered == LENGTHS.size + count * len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The buffer grows in steps of an eighth, and each step moves it.
    assert peak < 2.5 * 256 * len(chunk)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [ProtocolPhase.RUNNING, ProtocolPhase.ASKING])
def test_a_call_of_a_thread_does_not_revert_a_phase_change(after):
    """Threads of a session send calls while another one reads the host's next command."""
    pair = Pair(ProtocolPhase.IDLE)
    command = pair.host.send(WAY[after][-1])

    class Text(str):
        def encode(self, *args: str) -> bytes:
            assert len(list(pair.worker.receive(command))) == 1
            return b"text"

    call = Answered(1, 1, Answer("FINAL", Text("text"), None))
    assert list(pair.host.receive(pair.worker.send(call)))
    assert pair.worker.phase is after


# ── the two messages of a step, and what only looks like them ────────────────────────────────────

EMPTY = Result(7, None, None, (), (), 12_345_678)


@pytest.mark.parametrize("cell", [1, 10, (1 << 63) - 1])
@pytest.mark.parametrize("code", [b"", b"x = 1", b"}" * 300])
def test_a_cell_is_written_and_read_in_one_piece_as_any_message_is(cell, code):
    pair, twin = Pair(ProtocolPhase.IDLE), Pair(ProtocolPhase.IDLE)
    data = pair.host.execute(cell, code)

    assert data == twin.host.send(Execute(cell, code))
    assert pair.worker.cell(data) == (cell, code)
    assert list(twin.worker.receive(data)) == [Execute(cell, code)]
    assert pair.host.phase is pair.worker.phase is ProtocolPhase.RUNNING


def test_an_empty_result_is_written_and_read_in_one_piece_as_any_message_is():
    pair, twin = Pair(ProtocolPhase.RUNNING), Pair(ProtocolPhase.RUNNING)
    data = pair.worker.empty_result(EMPTY.cell, EMPTY.peak_memory)

    assert data == twin.worker.send(EMPTY)
    assert list(twin.host.receive(data)) == [EMPTY]
    assert pair.host.empty_result(data, EMPTY.cell) == EMPTY.peak_memory
    assert pair.host.phase is pair.worker.phase is ProtocolPhase.IDLE


def _frame(header: bytes, blob: bytes = b"") -> bytes:
    return LENGTHS.pack(len(header), len(blob)) + header + blob


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


_RESULT = encode(EMPTY)
_CELL = encode(Execute(7, b"x = 1"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        _RESULT[:5],
        _RESULT[:-1],
        _RESULT + b"\0",
        _RESULT + _RESULT,
        LENGTHS.pack(len(_RESULT) - LENGTHS.size - 1, 1) + _RESULT[LENGTHS.size :],
        _frame(b"\2" + _numbers(8, 0)),
        _frame(b"\2" + _numbers(7, 1 << 63)),
        _frame(b"\1" + _numbers(7, 0)),
        _frame(b"\3" + _numbers(7, 0)),
        _frame(b"\2" + _numbers(7), _numbers(0)),
        encode(Result(7, "", None, (), (), 0)),
        _CELL,
    ],
)
def test_bytes_similar_to_an_empty_result_are_refused(data):
    host = Pair(ProtocolPhase.RUNNING).host

    assert host.empty_result(data, EMPTY.cell) is None
    assert host.phase is ProtocolPhase.RUNNING
    assert host.buffered == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        _CELL[:5],
        _CELL[:-1],
        _CELL + b"x",
        _CELL + _CELL,
        _frame(b"\1" + _numbers(1 << 63), b"x"),
        _frame(b"\2" + _numbers(7), b"x"),
        _frame(b"\1" + _numbers(7)[1:], b"x"),
        LENGTHS.pack(10, 4) + b"\1" + _numbers(7) + b"x = 1",
        _RESULT,
    ],
)
def test_bytes_similar_to_a_cell_are_refused(data):
    worker = Pair(ProtocolPhase.IDLE).worker

    assert worker.cell(data) is None
    assert worker.phase is ProtocolPhase.IDLE
    assert worker.buffered == 0


@pytest.mark.parametrize("phase", [ProtocolPhase.BOOTING, ProtocolPhase.IDLE, ProtocolPhase.ASKING])
def test_an_empty_result_out_of_order_is_neither_sent_nor_accepted(phase):
    pair = Pair(phase)

    assert pair.host.empty_result(_RESULT, EMPTY.cell) is None
    with pytest.raises(LocalProtocolError):
        pair.worker.empty_result(EMPTY.cell, 0)


@pytest.mark.parametrize(
    "phase", [ProtocolPhase.BOOTING, ProtocolPhase.RUNNING, ProtocolPhase.ASKING]
)
def test_a_cell_out_of_order_is_neither_sent_nor_accepted(phase):
    pair = Pair(phase)

    assert pair.worker.cell(_CELL) is None
    with pytest.raises(LocalProtocolError):
        pair.host.execute(8, b"")


def test_a_message_inside_another_is_not_read_in_one_piece():
    host, worker = Pair(ProtocolPhase.RUNNING).host, Pair(ProtocolPhase.IDLE).worker
    assert not list(host.receive(_RESULT[:9]))
    assert not list(worker.receive(_CELL[:9]))

    assert host.empty_result(_RESULT, EMPTY.cell) is None
    assert worker.cell(_CELL) is None


def test_after_a_breach_no_result_is_read_in_one_piece_either():
    host = Pair(ProtocolPhase.RUNNING).host
    with pytest.raises(RemoteProtocolError):
        list(host.receive(encode(Ready(VERSION))))

    assert host.empty_result(_RESULT, EMPTY.cell) is None

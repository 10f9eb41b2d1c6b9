"""`PacedFrames` reads what the protocol that it is built on reads, a few frames at a time."""

from __future__ import annotations

import asyncio
import secrets

import pytest
import uvloop
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from repl_server.settings import Settings
from repl_server.websocket_limits import AT_ONCE, PacedFrames
from tests.server.raw_connections import CONTINUED, serve, wire
from tests.server.raw_connections import frame as wire_frame

MOST = 70_000


def of(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame of a client."""
    return Frame(opcode, data, fin).serialize(mask=True)


def text(data: bytes, *, fin: bool = True) -> bytes:
    return of(Opcode.TEXT, data, fin=fin)


def opened(kind: type[ServerProtocol]) -> ServerProtocol:
    return kind(state=OPEN, max_size=MOST)


def read(protocol: ServerProtocol, *pieces: bytes) -> tuple[object, ...]:
    """Return the result of receiving `pieces`: frames, the error, bytes sent back, the state."""
    for piece in pieces:
        protocol.receive_data(piece)
    error = protocol.parser_exc
    return (
        [(each.opcode, bytes(each.data), each.fin) for each in protocol.events_received()],
        None if error is None else (type(error), str(error)),
        [bytes(each) for each in protocol.data_to_send()],
        protocol.state,
    )


WHOLE = [text(secrets.token_bytes(size)) for size in (0, 1, 5, 125, 126, 127, 65_535, 65_536)]
ODD = [
    of(Opcode.PING, b"?"),
    of(Opcode.PONG),
    of(Opcode.BINARY, b"bytes"),
    of(Opcode.CONT, b"of nothing"),
    of(Opcode.CLOSE, b"\x03\xe8"),
    b"\xc1" + text(b"a reserved bit")[1:],
    Frame(Opcode.TEXT, b"no mask").serialize(mask=False),
    text(b"x" * (MOST + 1)),
    # Lengths that are written longer than they need to be.
    b"\x81\xfe\x00\x03\0\0\0\0abc",
    b"\x81\xff\0\0\0\0\0\0\x00\x03\0\0\0\0abc",
    # With lengths other than the announced ones.
    text(b"too short")[:-1],
    text(b"too long") + b"\x81",
    b"",
    b"\x81",
    b"\x81\x80\0\0",
    b"\x81\xfe\x00",
]


@pytest.mark.parametrize("frame", [*WHOLE, *ODD], ids=range(len([*WHOLE, *ODD])))
def test_a_frame_is_read_as_the_parser_reads_it(frame):
    for before in ((), (text(b"before"),), (text(b"first", fin=False),), (of(Opcode.PING),)):
        for after in ((), (text(b"after"),), (of(Opcode.CONT, b"last"), text(b"after"))):
            pieces = (*before, frame, *after)
            expected = read(opened(ServerProtocol), *pieces)
            assert read(opened(PacedFrames), *pieces) == expected


def test_frames_may_be_split_anywhere():
    stream = text(b"one") + text(b"t" * 126) + of(Opcode.PING, b"?") + text(b"three")
    expected = read(opened(ServerProtocol), stream)
    for cut in range(len(stream) + 1):
        assert read(opened(PacedFrames), stream[:cut], stream[cut:]) == expected


def test_a_frame_over_the_limit_is_refused_from_a_partial_header():
    paced, plain = PacedFrames(state=OPEN, max_size=3), ServerProtocol(state=OPEN, max_size=3)
    assert read(paced, text(b"four")) == read(plain, text(b"four"))
    assert paced.close_sent is not None
    assert paced.close_sent.code == 1009


def test_a_text_after_queued_frames_is_read_after_them():
    protocol = opened(PacedFrames)
    numbers = [str(number).encode() for number in range(AT_ONCE + 2)]
    protocol.receive_data(b"".join(map(text, numbers)))
    protocol.receive_data(text(b"last"))
    assert [event.data for event in protocol.events_received()] == [*numbers, b"last"]


def test_nothing_is_written_or_read_after_the_end():
    protocol = opened(PacedFrames)
    protocol.send_close(1000)
    with pytest.raises(InvalidState):
        protocol.send_text(b"late")
    expected = opened(ServerProtocol)
    expected.send_close(1000)
    for frame in (text(b"late"), of(Opcode.CLOSE, b"\x03\xe8"), text(b"later")):
        assert read(protocol, frame) == read(expected, frame)


def test_a_flood_of_fragments_is_read_in_small_batches(monkeypatch):
    """However many of its messages are expected, one connection has one turn among the others'."""
    batches, most = 0, 0
    receive_data = PacedFrames.receive_data

    def counting(self, data):
        nonlocal batches
        batches += 1
        return receive_data(self, data)

    monkeypatch.setattr(PacedFrames, "receive_data", counting)
    fragments = [wire_frame(b"", CONTINUED, fin=False)] * (20 * AT_ONCE - 2)
    message = wire_frame(b"", fin=False) + b"".join(fragments)
    message += wire_frame(b"", CONTINUED)
    received, all_came = 0, asyncio.Event()

    async def app(scope, receive, send):
        nonlocal received
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            received += 1
            if received == 40:
                all_came.set()

    async def count_turns():
        nonlocal batches, most
        while True:
            await asyncio.sleep(0)
            batches, most = 0, max(most, batches)

    async def main():
        async with serve(app, Settings()) as served, wire(served.port) as client:
            await client.open_socket()
            counting_turns = asyncio.create_task(count_turns())
            await client.send(message * 40)
            await all_came.wait()
            counting_turns.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))
    # The received bytes, the buffered rest, and one more batch if both are read in one turn.
    assert most <= 3

"""`PacedFrames` reads and writes what the protocol that it is built on reads and writes."""

from __future__ import annotations

import secrets

import pytest
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from repl_server.paced_frames import AT_ONCE, PacedFrames

MOST = 70_000


def of(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame of a client."""
    return Frame(opcode, data, fin).serialize(mask=True)


def text(data: bytes, *, fin: bool = True) -> bytes:
    return of(Opcode.TEXT, data, fin=fin)


def opened(kind: type[ServerProtocol]) -> ServerProtocol:
    return kind(state=OPEN, max_size=MOST)


def read(protocol: ServerProtocol, *pieces: bytes) -> tuple[object, ...]:
    """What comes of these pieces: frames, the error, what is sent back, the state."""
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
    # Of other lengths than they say.
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


def test_it_does_not_matter_where_frames_are_cut():
    stream = text(b"one") + text(b"t" * 126) + of(Opcode.PING, b"?") + text(b"three")
    expected = read(opened(ServerProtocol), stream)
    for cut in range(len(stream) + 1):
        assert read(opened(PacedFrames), stream[:cut], stream[cut:]) == expected


def test_what_is_over_the_limit_is_refused_however_short_its_head():
    paced, plain = PacedFrames(state=OPEN, max_size=3), ServerProtocol(state=OPEN, max_size=3)
    assert read(paced, text(b"four")) == read(plain, text(b"four"))
    assert paced.close_sent is not None
    assert paced.close_sent.code == 1009


def test_a_text_behind_frames_that_wait_comes_after_them():
    protocol = opened(PacedFrames)
    numbers = [str(number).encode() for number in range(AT_ONCE + 2)]
    protocol.receive_data(b"".join(map(text, numbers)))
    protocol.receive_data(text(b"last"))
    assert [event.data for event in protocol.events_received()] == [*numbers, b"last"]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_text_is_written_as_the_protocol_writes_it(size):
    sent = []
    for kind in (PacedFrames, ServerProtocol):
        protocol = opened(kind)
        protocol.send_text(b"x" * size)
        protocol.send_text(b"in ", fin=False)
        with pytest.raises(ProtocolError):
            protocol.send_text(b"between")
        protocol.send_continuation(b"parts", fin=True)
        sent.append(b"".join(protocol.data_to_send()))
    assert sent[0] == sent[1]


def test_nothing_is_written_or_read_after_the_end():
    protocol = opened(PacedFrames)
    protocol.send_close(1000)
    with pytest.raises(InvalidState):
        protocol.send_text(b"late")
    expected = opened(ServerProtocol)
    expected.send_close(1000)
    for frame in (text(b"late"), of(Opcode.CLOSE, b"\x03\xe8"), text(b"later")):
        assert read(protocol, frame) == read(expected, frame)


UNDER_WAY = [text(b"first", fin=False), b"\x81"]


@pytest.mark.parametrize("frame", [text("ä\n".encode()), *WHOLE, *ODD], ids=range(9 + len(ODD)))
@pytest.mark.parametrize("before", [b"", of(Opcode.PING), *UNDER_WAY], ids=range(4))
def test_a_text_that_is_taken_at_once_is_one_that_the_parser_reads(before, frame):
    """And it is taken only where that reads nothing else; nothing was taken where it is not."""
    paced, plain = opened(PacedFrames), opened(ServerProtocol)
    assert read(paced, before) == read(plain, before)
    taken = paced.text_of(frame)
    found = read(plain, frame)
    if taken is None:
        assert read(paced, frame) == found
    else:
        assert before not in UNDER_WAY
        assert found == ([(Opcode.TEXT, taken.encode(), True)], None, [], OPEN)
        after = text(b"after"), of(Opcode.CLOSE, b"\x03\xe8")
        assert read(paced, *after) == read(plain, *after)


def test_most_texts_are_taken_at_once():
    paced = opened(PacedFrames)
    for size in (0, 1, 125, 126, 65_535):
        assert paced.text_of(text(b"x" * size)) == "x" * size
    assert paced.text_of(text(b"x" * 65_536)) is None
    assert paced.text_of(text(b"\xff")) is None


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_to_be_written_at_once_is_the_protocols(size):
    said = "ä" * size
    paced, plain = opened(PacedFrames), opened(ServerProtocol)
    plain.send_text(said.encode())
    assert [paced.frame_of(said)] == [bytes(each) for each in plain.data_to_send()]


def test_no_frame_is_written_at_once_before_others_or_within_a_message():
    paced = opened(PacedFrames)
    paced.send_ping(b"first")
    assert paced.frame_of("text") is None
    paced.data_to_send()
    assert paced.frame_of("text") is not None
    paced.send_text(b"a part", fin=False)
    paced.data_to_send()
    assert paced.frame_of("text") is None
    paced.send_continuation(b"the rest", fin=True)
    paced.data_to_send()
    paced.send_close(1000)
    paced.data_to_send()
    assert paced.frame_of("text") is None

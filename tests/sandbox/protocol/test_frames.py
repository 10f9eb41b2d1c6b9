"""Frames: the bytes of docs/protocol.md, in any chunking, never more bytes than were sent."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_sandbox.errors import LocalProtocolError, RemoteProtocolError
from repl_sandbox.protocol import frames
from repl_sandbox.protocol.frames import LENGTHS, MAX_BLOB, MAX_HEADER, Frame, FrameReader, pack

FRAMES = [
    Frame(b'{"type":"list"}', b""),
    Frame(b"", b""),
    Frame(b"{}", b"\x00" * 300),
    Frame(b"x" * 257, b"\xff"),
    Frame(b"", b"only a blob"),
]
STREAM = b"".join(pack(*frame) for frame in FRAMES)


def read(reader: FrameReader, data: bytes) -> list[Frame]:
    reader.feed(data)
    return list(iter(reader.next_frame, None))


def test_a_frame_is_two_lengths_in_network_order_then_header_then_blob():
    assert pack(b"{}", b"abc") == b"\x00\x00\x00\x02\x00\x00\x00\x03{}abc"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, len(STREAM)])
def test_frames_survive_any_chunk_size(size):
    reader = FrameReader()
    found: list[Frame] = []
    for start in range(0, len(STREAM), size):
        found += read(reader, STREAM[start : start + size])
    assert found == FRAMES
    assert reader.buffered == 0


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40))), st.data())
def test_frames_survive_any_chunk_boundaries(parts, data):
    sent = [Frame(*part) for part in parts]
    stream = b"".join(pack(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader = FrameReader()
    found: list[Frame] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += read(reader, stream[start:stop])
    assert found == sent


def test_a_frame_is_returned_once_it_is_complete():
    reader = FrameReader()
    whole = pack(b"{}", b"abc")
    for byte in whole[:-1]:
        assert read(reader, bytes([byte])) == []
    assert read(reader, whole[-1:]) == [Frame(b"{}", b"abc")]


def test_bytes_after_a_frame_are_kept_for_the_next():
    reader = FrameReader()
    assert read(reader, pack(b"a") + pack(b"b")[:5]) == [Frame(b"a", b"")]
    assert reader.buffered == 5
    assert read(reader, pack(b"b")[5:] + pack(b"c")) == [Frame(b"b", b""), Frame(b"c", b"")]


def test_parts_are_independent_bytes_objects():
    """A view or a bytearray would be changed or pinned by a later chunk."""
    reader = FrameReader()
    (whole,) = read(reader, pack(b"h", b"b"))
    assert read(reader, pack(b"h", b"b")[:9]) == []
    (pieced,) = read(reader, pack(b"h", b"b")[9:])
    assert [type(part) for part in (*whole, *pieced)] == [bytes] * 4


@pytest.mark.parametrize(
    "lengths", [(MAX_HEADER + 1, 0), (0, MAX_BLOB + 1), (0xFFFFFFFF, 0xFFFFFFFF)]
)
def test_a_frame_too_large_is_refused_from_its_eight_length_bytes_alone(lengths):
    reader = FrameReader()
    announced = LENGTHS.pack(*lengths)
    assert read(reader, announced[:7]) == []
    reader.feed(announced[7:])
    with pytest.raises(RemoteProtocolError, match="limits are"):
        reader.next_frame()
    assert reader.buffered == 8


def test_a_frame_of_exactly_the_largest_size_is_waited_for():
    reader = FrameReader()
    assert read(reader, LENGTHS.pack(MAX_HEADER, MAX_BLOB)) == []
    assert reader.buffered == 8


def test_frames_before_an_oversized_one_are_returned():
    reader = FrameReader()
    reader.feed(pack(b"good") + LENGTHS.pack(MAX_HEADER + 1, 0))
    assert reader.next_frame() == Frame(b"good", b"")
    with pytest.raises(RemoteProtocolError):
        reader.next_frame()


@pytest.mark.parametrize(("header", "blob"), [(MAX_HEADER + 1, 0), (0, MAX_BLOB + 1)])
def test_frames_that_the_peer_would_refuse_are_not_sent(header, blob):
    with pytest.raises(LocalProtocolError, match="limits are"):
        pack(bytes(header), bytes(blob))


def test_the_limits_can_be_narrower():
    reader = FrameReader(max_header=4, max_blob=8)
    assert read(reader, pack(b"1234", b"12345678")) == [Frame(b"1234", b"12345678")]
    reader.feed(LENGTHS.pack(5, 0))
    with pytest.raises(RemoteProtocolError):
        reader.next_frame()


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def traced():
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


def held_here() -> int:
    """Return the bytes that the reader and this test hold, without threads of an earlier test."""
    ours = [tracemalloc.Filter(True, path) for path in (frames.__file__, __file__)]
    found = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
    return sum(each.size for each in found)


def test_the_largest_blob_sent_slowly_takes_no_more_memory_than_was_sent(traced):
    reader = FrameReader()
    chunk = bytes(1 << 12)
    sent = len(LENGTHS.pack(0, MAX_BLOB))
    reader.feed(LENGTHS.pack(0, MAX_BLOB))
    for _ in range(512):
        reader.feed(chunk)
        sent += len(chunk)
        assert reader.next_frame() is None
        assert reader.buffered == sent
    _, peak = traced()
    # A growing buffer grows in steps of an eighth, and each step moves it.
    assert peak < 2.5 * sent
    assert sent < MAX_BLOB / 16


def test_a_large_frame_is_freed_once_it_was_returned(traced):
    reader = FrameReader()
    size = 8 << 20
    reader.feed(LENGTHS.pack(2, size) + b"{}")
    for _ in range(8):
        assert reader.next_frame() is None
        reader.feed(bytes(size // 8))
    frame = reader.next_frame()
    assert frame is not None
    assert len(frame.blob) == size
    del frame
    assert held_here() < 1 << 20


def test_many_small_frames_leave_nothing_behind(traced):
    reader = FrameReader()
    small = pack(b"{}", bytes(100))
    for _ in range(2_000):
        # Always one and a half frames, so that a part is always buffered.
        reader.feed(small[: len(small) // 2])
        assert reader.next_frame() is None
        reader.feed(small[len(small) // 2 :] + small[:50])
        assert reader.next_frame() is not None
        reader.feed(small[50:])
        assert reader.next_frame() is not None
    assert reader.buffered == 0
    assert held_here() < 1 << 16

"""What comes with an order that is not followed is let go of."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from repl_sandbox.worker import orders


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"x", ValueError),
        (orders.ORDER.pack(7, 0, -1, 10_000), ValueError),
        (orders.ORDER.pack(7, 0, -1, 3), BlockingIOError),
        (orders.ORDER.pack(8, 0, -1, 0), None),
    ],
)
def test_no_descriptor_is_left_of_what_is_no_order_for_this_process(
    ends: tuple[socket.socket, socket.socket], said: bytes, error: type[Exception] | None
) -> None:
    ours, theirs = ends
    socket.send_fds(ours, [said], [0, 0, 0, 0, 0])
    before = os.listdir("/proc/self/fd")
    if error is None:
        assert orders.read(theirs, 7, wait=False) is None
    else:
        with pytest.raises(error):
            orders.read(theirs, 7, wait=False)
    assert os.listdir("/proc/self/fd") == before


def test_an_order_has_what_came_with_it(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    socket.send_fds(ours, [orders.ORDER.pack(7, 5, -1, 4) + b"/tmp"], [0, 0, 0, 0, 0])
    before = os.listdir("/proc/self/fd")
    order = orders.read(theirs, 7, wait=False)
    assert order is not None
    assert order[:3] == (5, -1, "/tmp")
    assert [os.path.sameopenfile(fd, 0) for fd in order.descriptors] == [True] * 5
    order.close()
    assert os.listdir("/proc/self/fd") == before

"""Descriptors that come with an order that is not followed are closed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_sandbox.protocol import control


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file that is open nowhere else in this process."""
    fd = os.open(tmp_path / "sent", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def held(sent: int) -> int:
    """The number of open descriptors of that file; other threads open and close descriptors
    meanwhile.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.path.sameopenfile(int(name), sent)
    return count


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"x", ValueError),
        (control.COMMAND.pack(7, 0, -1, 10_000), ValueError),
        (control.COMMAND.pack(7, 0, -1, 3), BlockingIOError),
        (control.COMMAND.pack(8, 0, -1, 0), None),
    ],
)
def test_descriptors_of_foreign_orders_are_closed(
    ends: tuple[socket.socket, socket.socket],
    sent: int,
    said: bytes,
    error: type[Exception] | None,
) -> None:
    ours, theirs = ends
    socket.send_fds(ours, [said], [sent] * 5)
    if error is None:
        assert control.read_command(theirs, 7, wait=False) is None
    else:
        with pytest.raises(error):
            control.read_command(theirs, 7, wait=False)
    assert held(sent) == 1


def test_an_order_has_its_descriptors(ends: tuple[socket.socket, socket.socket], sent: int) -> None:
    ours, theirs = ends
    socket.send_fds(ours, [control.COMMAND.pack(7, 5, -1, 4) + b"/tmp"], [sent] * 5)
    order = control.read_command(theirs, 7, wait=False)
    assert order is not None
    assert order[:3] == (5, -1, "/tmp")
    assert [os.path.sameopenfile(fd, sent) for fd in order.descriptors] == [True] * 5
    assert held(sent) == 6
    order.close()
    assert held(sent) == 1

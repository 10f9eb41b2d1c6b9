"""The attached standard streams of a container, as the `docker` package gives them."""

from __future__ import annotations

import os
import select
from typing import Any

from ...zygote.stream.stream_frames import Unwrapper

_READ = 1 << 16


def rest(attached: Any) -> bytes:
    """The output, since `attached` was made, of a container that ends or has ended."""
    fd, unwrapper, said = descriptor(attached), Unwrapper(), b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while poller.poll():
        try:
            data = os.read(fd, _READ)
        except OSError:
            break
        if not data:
            break
        said += b"".join(piece for _, piece in unwrapper.feed(data))
    return said


def descriptor(attached: Any) -> int:
    """The descriptor of the stream, which stays the package's."""
    return int(getattr(attached, "_sock", attached).fileno())


def close(attached: Any) -> None:
    """The package has no call that closes the answer, its file and the socket below."""
    below, answer = getattr(attached, "_sock", attached), getattr(attached, "_response", attached)
    for each in (answer, attached, below):
        each.close()

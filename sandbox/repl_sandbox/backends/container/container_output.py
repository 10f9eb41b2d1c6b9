"""The attached standard streams of a container, as the `docker` package provides them."""

from __future__ import annotations

import os
import select
from typing import Any

from ...zygote.stream.stream_frames import Unwrapper

_READ = 1 << 16


def rest(attached: Any) -> bytes:
    """The output of a container that ends or has ended, since `attached` was made."""
    fd, unwrapper, output = descriptor(attached), Unwrapper(), b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while poller.poll():
        try:
            data = os.read(fd, _READ)
        except OSError:
            break
        if not data:
            break
        output += b"".join(piece for _, piece in unwrapper.feed(data))
    return output


def descriptor(attached: Any) -> int:
    """The descriptor of the stream, which the package owns."""
    return int(getattr(attached, "_sock", attached).fileno())


def close(attached: Any) -> None:
    """Close the response, its file and its socket, for which the package has no call."""
    below, answer = getattr(attached, "_sock", attached), getattr(attached, "_response", attached)
    for each in (answer, attached, below):
        each.close()

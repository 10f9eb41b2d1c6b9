"""What is attached to a container's standard streams, as the `docker` package gives it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docker.utils.socket import frames_iter


def rest(attached: Any) -> bytes:
    """What the container, which ends or has ended, wrote since it was attached to."""
    frames: Iterable[tuple[int, bytes]] = frames_iter(attached, tty=False)
    return b"".join(data for _, data in frames)


def descriptor(attached: Any) -> int:
    """The descriptor of the stream, which stays the package's."""
    return int(getattr(attached, "_sock", attached).fileno())


def close(attached: Any) -> None:
    """The package has no call that closes the answer, its file and the socket below."""
    below, answer = getattr(attached, "_sock", attached), getattr(attached, "_response", attached)
    for each in (answer, attached, below):
        each.close()

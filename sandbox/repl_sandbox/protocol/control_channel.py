"""Small messages between trusted processes: host, zygote and init. One datagram of JSON each.

The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all; descriptors ride along.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import IsolationError, SandboxError

Message: TypeAlias = dict[str, Any]

# The largest is a zygote's configuration: paths and mounts, a few KiB.
MAX_MESSAGE = 1 << 16
# Of a session: control and worker socket, stdout, stderr, and what its groups are joined by.
MAX_DESCRIPTORS = 8


def failure(error: IsolationError) -> Message:
    """What says to the host that a step of the jail failed."""
    return {
        "failed": error.step,
        "tier": error.tier,
        "message": str(error),
        "remedy": error.remedy,
    }


def refusal(error: Exception) -> Message:
    """What says to the host that there will be no template."""
    if isinstance(error, IsolationError):
        return failure(error)
    ours = isinstance(error, SandboxError)
    return {"failed": "", "message": str(error) if ours else f"{type(error).__name__}: {error}"}


def error_of(answer: Message) -> SandboxError:
    """What such a message says."""
    if not answer["failed"]:
        return SandboxError(answer["message"])
    step, remedy = answer["failed"], answer.get("remedy", "")
    # It was formatted where it was raised, and would be again.
    tier = answer["tier"]
    message = str(answer["message"]).removeprefix(f"{tier}: {step}: ")
    if remedy:
        message = message.removesuffix(f". {remedy}")
    return IsolationError(tier, step, message, remedy)


def held(found: Mapping[str, int]) -> bytes:
    """What a worker says of its jail before any code runs.

    Put together by hand: its process would copy the pages of an encoder for nothing else.
    """
    rows = [b'"%b": %d' % (name.encode(), number) for name, number in found.items()]
    return b'{"held": {%b}}' % b", ".join(rows)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; both close on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Lifeline(socket.socket):
    """The host's end of a socket by which a zygote lives. Its name is what a warning says."""

    def __repr__(self) -> str:
        # CPython warns of "unclosed", with this behind it, when one is dropped open.
        return (
            f"<Sandbox, by its socket {self.fileno()}: close it, or use it in a `with` statement>"
        )


def lifeline() -> tuple[Lifeline, socket.socket]:
    """As `pair`, for a zygote: the host's end first."""
    ours, theirs = pair()
    return Lifeline(fileno=ours.detach()), theirs


def open_end(fd: int) -> socket.socket:
    """The end whose descriptor is `fd`. Named, so that the kernel need not be asked what it is."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message; OSError if the other end is gone."""
    data = json.dumps(message).encode()
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> Message | None:
    """The next message, or None when the other end is closed."""
    data = sock.recv(MAX_MESSAGE)
    return json.loads(data) if data else None


def receive_with_descriptors(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and the descriptors sent with it, which close on exec."""
    flags = socket.MSG_CMSG_CLOEXEC
    data, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS, flags)
    return (json.loads(data) if data else None), descriptors

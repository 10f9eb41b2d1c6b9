"""Control messages between trusted processes (host, zygote, init): one JSON datagram each.

The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all; descriptors travel with
it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import IsolationError, SandboxError

Message: TypeAlias = dict[str, Any]

# The largest message is a zygote's configuration: paths and mounts, a few KiB.
MAX_MESSAGE = 1 << 16
# Descriptors of a session: control and worker socket, stdout, stderr, and those to join cgroups.
MAX_DESCRIPTORS = 8


def failure(error: IsolationError) -> Message:
    """Return the message to the host for a failed step of the jail."""
    return {
        "failed": error.step,
        "tier": error.tier,
        "message": str(error),
        "remedy": error.remedy,
    }


def refusal(error: Exception) -> Message:
    """Return the message to the host that no template could be made."""
    if isinstance(error, IsolationError):
        return failure(error)
    is_own = isinstance(error, SandboxError)
    return {"failed": "", "message": str(error) if is_own else f"{type(error).__name__}: {error}"}


def error_of(answer: Message) -> SandboxError:
    """Return the error that a `failure` or `refusal` message describes."""
    if not answer["failed"]:
        return SandboxError(answer["message"])
    step, remedy = answer["failed"], answer.get("remedy", "")
    # The message was formatted where the error was raised, and the constructor formats it again.
    tier = answer["tier"]
    message = str(answer["message"]).removeprefix(f"{tier}: {step}: ")
    if remedy:
        message = message.removesuffix(f". {remedy}")
    return IsolationError(tier, step, message, remedy)


def findings(found: Mapping[str, int]) -> bytes:
    """Return a worker's measurements of its jail, made before any code runs, as JSON.

    The JSON is assembled by hand: an encoder would only copy pages in this process.
    """
    rows = [b'"%b": %d' % (name.encode(), number) for name, number in found.items()]
    return b'{"findings": {%b}}' % b", ".join(rows)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends; both close on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Lifeline(socket.socket):
    """The host's end of a socket that keeps a zygote alive. A ResourceWarning shows its repr."""

    def __repr__(self) -> str:
        # CPython warns "unclosed", followed by this repr, when an open socket is collected.
        return (
            f"<Sandbox, by its socket {self.fileno()}: close it, or use it in a `with` statement>"
        )


def lifeline() -> tuple[Lifeline, socket.socket]:
    """Return a `pair` for a zygote: the host's end first."""
    own_end, other_end = pair()
    return Lifeline(fileno=own_end.detach()), other_end


def open_end(fd: int) -> socket.socket:
    """Return the end with descriptor `fd`. Explicit arguments spare system calls for its kind."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message; OSError if the other end is closed."""
    data = json.dumps(message).encode()
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> Message | None:
    """Return the next message, or None when the other end is closed."""
    data = sock.recv(MAX_MESSAGE)
    return json.loads(data) if data else None


def receive_with_descriptors(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Return the next message and the descriptors sent with it, which close on exec."""
    flags = socket.MSG_CMSG_CLOEXEC
    data, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS, flags)
    return (json.loads(data) if data else None), descriptors

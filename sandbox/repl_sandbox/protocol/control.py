"""Messages between trusted processes (host, zygote, init, workers), and the signals among them."""

from __future__ import annotations

import _signal
import _socket
import fcntl
import json
import os
import socket
import struct
from _signal import SIGIO, SIGURG, SIGWINCH
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ..errors import IsolationError, SandboxError

# Control messages between trusted processes (host, zygote, init): one JSON datagram each.
#
# The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all; descriptors travel
# with it.

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


# The signals by which init, the host and the snapshots of a worker coordinate.

# Sent by init to a snapshot: the next message is addressed to it.
WAKE_SIGNAL = _signal.SIGUSR1
# Blocked in a waiting snapshot: the mark by which the host recognises it. WAKE_SIGNAL cannot be the
# mark: while a process waits for a signal in sigtimedwait, the kernel shows it as not blocked.
SNAPSHOT_SIGNAL = _signal.SIGRTMAX
HELD_SIGNALS = (WAKE_SIGNAL, SNAPSHOT_SIGNAL)


# Marks on a session's standard streams: a worker sees whether a stream is at its number.
#
# A mark is a property of the open file, so each copy of the descriptor has it, and one short call
# reads it; fstat(2) with CPython's conversion takes several times as long. The property is the
# signal that reports input and output on request (fcntl(2), F_SETSIG), which is SIGIO without a
# mark. The marks of the other two streams are signals that are ignored by default.

ASK: Final = fcntl.F_GETSIG
MARKS: Final = (int(SIGURG), int(SIGIO), int(SIGWINCH))  # by descriptor; an unmarked file has 0


def mark(fd: int, stream: int) -> None:
    """Mark the file open at `fd` as `stream`; a kernel without such marks leaves it as it is."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, MARKS[stream])


def is_marked(stream: int) -> bool:
    """Return whether `stream` is open at its number."""
    try:
        return fcntl.fcntl(stream, ASK) == MARKS[stream]
    except OSError:
        return False


# The messages of workers and snapshots to their init, and init's commands to them.
#
# All processes of a branch have the same end of one socket. So has its code, which may have sent
# anything, or read messages for others.

# A worker's message: keep the files, as those after that cell number, which is answered; or the
# process id of the branch that it has forked, -1 if it could not.
WORKER_MESSAGE: Final = struct.Struct("=Bq")
KEEP: Final = 0
BRANCHED: Final = 1
KEPT: Final = b"k"
# Init's message to a snapshot, or for a branch to the worker, with the socket to speak on: the pid
# of the addressee, `SnapshotCommand.cpu_left`, `SnapshotCommand.seed`, and the number of following
# bytes, those of `SnapshotCommand.folder`.
COMMAND: Final = struct.Struct("=iiqI")
# With a branch's socket come that of its own snapshots, their table, and its standard streams.
_BRANCH_DESCRIPTORS: Final = 5
_LONGEST: Final = 4096  # PATH_MAX
_STDERR: Final = 2

_close = os.close  # taken once: code may replace that of the module


class SnapshotCommand(NamedTuple):
    """The command to be the worker from now on; with a `folder`, to fork a branch with
    its files there.

    `cpu_left`: seconds that the session may still use, 0 if not limited. `seed`: of random numbers,
    -1 for none. `descriptors`: the socket to speak on, and those that came with it.
    """

    cpu_left: int
    seed: int
    folder: str
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors: another process follows the command."""
        for fd in self.descriptors:
            _close(fd)


def read_command(init_socket: _socket.socket, pid: int, *, wait: bool) -> SnapshotCommand | None:
    """Read init's next command, perhaps after a `wait`; None if it is not for process `pid`.

    Raises:
        EOFError: there will be none.
        OSError, ValueError: the session's code has closed the socket, or read the command or a
            part.
    """
    # The code may have made the socket non-blocking for all processes that hold it.
    init_socket.setblocking(True)
    flags = 0 if wait else socket.MSG_DONTWAIT
    # That function needs `recvmsg` alone of a socket.
    end = cast("socket.socket", init_socket)
    data, descriptors, _, _ = socket.recv_fds(end, COMMAND.size, _BRANCH_DESCRIPTORS, flags)
    command = SnapshotCommand(0, -1, "", descriptors)
    try:
        if not data:
            raise EOFError("init is gone")
        if len(data) < COMMAND.size:
            raise ValueError("the command is incomplete")
        to, cpu_left, seed, length = COMMAND.unpack(data)
        if length > _LONGEST:
            raise ValueError("the command is invalid")
        folder = os.fsdecode(init_socket.recv(length, flags | socket.MSG_WAITALL)) if length else ""
        for index, fd in enumerate(descriptors):
            descriptors[index] = _moved_up(fd)
        if to == pid:
            return command._replace(cpu_left=cpu_left, seed=seed, folder=folder)
    except BaseException:
        command.close()
        raise
    command.close()
    return None


def _moved_up(fd: int) -> int:
    """Move `fd` to a number that is no standard stream's, which the code may have closed."""
    if fd > _STDERR:
        return fd
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    _close(fd)
    return lifted


# The host's requests to its zygote for each session, and the answers: words separated by spaces.
#
# All other messages are JSON. But each page that a process writes to after a fork is copied,
# parsing JSON writes to some 60 pages, and the zygote forks between any two of these requests.

# Numbers, and the settings of a session, whose names and values are the engine's own.
_MAX_REQUEST = 4096
# The number of an `end` that needs no answer; requests count from 1.
UNANSWERED = 0
_SPACE = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_SOL_SOCKET, _SCM_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)


def settings(
    workspace: int, rlimits: Mapping[str, int], snapshots: int = -1, processes: int = 0
) -> bytes:
    """Encode the settings that most sessions of a template share, so that they are read once."""
    chosen = {
        "workspace": workspace,
        "rlimits": dict(rlimits),
        "snapshots": snapshots,
        "processes": processes,
    }
    return json.dumps(chosen).encode()


def read_settings(data: bytes) -> Message:
    """Read the result of `settings`."""
    message: Message = json.loads(data)
    return message


def spawn(number: int, slot: int, group: int, settled: bytes) -> bytes:
    """Encode the start of session `number`; `group`: the version of its cgroup, 0 for none."""
    return b"spawn %d %d %d %b" % (number, slot, group, settled)


def end(number: int, session: int) -> bytes:
    """Encode the end of `session`; its answer is `gone`, none if `number` is UNANSWERED."""
    return b"end %d %d" % (number, session)


def ask(number: int, question: Message) -> bytes:
    """Encode any other request, a rare one, whose descriptors depend on `question`."""
    return b"ask %d %b" % (number, json.dumps(question).encode())


def answer_to(number: int, message: Message) -> bytes:
    """Encode the answer to `ask`."""
    return b"answer %d %b" % (number, json.dumps(message).encode())


def gone(number: int, *, known: bool) -> bytes:
    """Encode the answer to `end`; `known`: whether there was such a session."""
    return b"gone %d %d" % (number, known)


def read_answer(data: bytes) -> tuple[int, bytes]:
    """Return the number of the request that `data` answers, and the answer."""
    _, number, rest = data.split(b" ", 2)
    return int(number), rest


def receive_request(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next request and its descriptors, which close on exec; b"" when the host is
    gone.
    """
    try:
        data, ancillary, _, _ = sock.recvmsg(_MAX_REQUEST, _SPACE, _FLAGS)
    except ConnectionResetError:  # with unread answers
        return b"", []
    for level, kind, payload in ancillary:
        if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
            return data, memoryview(payload).cast("i").tolist()
    return data, []

"""The host's requests to its zygote for each session, and the answers: words separated by spaces.

All other messages are JSON (`control_channel`). But each page that a process writes to after a fork
is copied, parsing JSON writes to some 60 pages, and the zygote forks between any two of these
requests.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

from ..protocol import control_channel

# Numbers, and the settings of a session, whose names and values are the engine's own.
_MAX_REQUEST = 4096
# The number of an `end` that needs no answer; requests count from 1.
UNANSWERED = 0
_SPACE = socket.CMSG_SPACE(control_channel.MAX_DESCRIPTORS * 4)
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


def read_settings(data: bytes) -> control_channel.Message:
    """Read the result of `settings`."""
    message: control_channel.Message = json.loads(data)
    return message


def spawn(number: int, slot: int, group: int, settled: bytes) -> bytes:
    """Encode the start of session `number`; `group`: the version of its cgroup, 0 for none."""
    return b"spawn %d %d %d %b" % (number, slot, group, settled)


def end(number: int, session: int) -> bytes:
    """Encode the end of `session`; its answer is `gone`, none if `number` is UNANSWERED."""
    return b"end %d %d" % (number, session)


def ask(number: int, question: control_channel.Message) -> bytes:
    """Encode any other request, a rare one, whose descriptors depend on `question`."""
    return b"ask %d %b" % (number, json.dumps(question).encode())


def answer_to(number: int, message: control_channel.Message) -> bytes:
    """Encode the answer to `ask`."""
    return b"answer %d %b" % (number, json.dumps(message).encode())


def gone(number: int, *, known: bool) -> bytes:
    """Encode the answer to `end`; `known`: whether there was such a session."""
    return b"gone %d %d" % (number, known)


def read_answer(data: bytes) -> tuple[int, bytes]:
    """Return the number of the request that `data` answers, and the answer."""
    _, number, rest = data.split(b" ", 2)
    return int(number), rest


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
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

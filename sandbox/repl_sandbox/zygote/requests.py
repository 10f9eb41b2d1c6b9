"""What a host asks its zygote for each session, and the answer: words with a space between.

Not JSON, as all else that they say to each other: after each fork, what a process writes to first
is copied, and a parser of JSON is some 60 pages of that. The zygote forks between any two requests.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

from . import control

# Numbers, and the settings of a session, whose names and values are our own.
_MAX_REQUEST = 4096
_SPACE = socket.CMSG_SPACE(control.MAX_DESCRIPTORS * 4)
_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_SOL_SOCKET, _SCM_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)


def settings(workspace: int, rlimits: Mapping[str, int]) -> bytes:
    """What is the same for most sessions of a template, which then need not be read again."""
    return json.dumps({"workspace": workspace, "rlimits": dict(rlimits)}).encode()


def read_settings(data: bytes) -> control.Message:
    """What `settings` made."""
    message: control.Message = json.loads(data)
    return message


def spawn(number: int, slot: int, group: int, settings: bytes) -> bytes:
    """Start session `number`; `group` is the version of its cgroup, 0 for none."""
    return b"spawn %d %d %d %b" % (number, slot, group, settings)


def end(number: int, session: int) -> bytes:
    """End `session`, and answer to `number` when all of it is gone."""
    return b"end %d %d" % (number, session)


def gone(number: int, known: bool | None = None) -> bytes:
    """The answer to `end`: whether there was such a session. Without that, how it begins."""
    return b"gone %d " % number if known is None else b"gone %d %d" % (number, known)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The next request and its descriptors, which close on exec; b"" when the host is gone."""
    data, ancillary, _, _ = sock.recvmsg(_MAX_REQUEST, _SPACE, _FLAGS)
    for level, kind, payload in ancillary:
        if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
            return data, memoryview(payload).cast("i").tolist()
    return data, []

"""The handshake with a new session: its worker is ready, or an error explains why not.

The zygote does not answer a spawn: the worker sends the first message, or the error comes through
the session's control socket.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from ...errors import RemoteProtocolError, SandboxError
from ...jail.remedies import step_error
from ...protocol import control_channel
from ...protocol.messages import VERSION, Ready
from .session_links import SessionLinks

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_RIGHT = struct.Struct("i")


def await_ready(links: SessionLinks, seconds: float) -> bool:
    """Wait for the worker's first message, and note its pid; False if there will be no session.

    Raises:
        IsolationError: a step of the jail failed.
        OSError: the session has ended since.
        SandboxError: nothing came within `seconds`, or the session failed otherwise.
    """
    # Not select(2), which ends at descriptor 1,023. Only the worker's socket: a failing process
    # also ends, and with the last process that has the other end the socket ends.
    poller = select.poll()
    poller.register(links.worker, select.POLLIN)
    if not poller.poll(seconds * 1000):
        raise SandboxError(f"the zygote did not answer within {seconds} s")
    pid = read_ready(links)
    if pid:
        _read_report(links)
        links.worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        links.worker_pid, links.pid = pid, _parent(pid, links)
        return True
    links.control.settimeout(1.0)
    report = _read_report(links)
    if report is None:
        return False
    if "failed" in report:
        raise control_channel.error_of(report)
    raise SandboxError(f"the session did not start: {report}")


def read_ready(links: SessionLinks) -> int:
    """Return the pid of the worker that has just sent `Ready`; 0 if it is gone without a
    message.
    """
    apart = links.baseline.is_remote
    # For a worker of this kernel there is no buffer for descriptors, which the kernel then closes;
    # for the relay's messages there is a buffer for one.
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + (socket.CMSG_LEN(_RIGHT.size) if apart else 0)
    data, ancillary, _, _ = links.worker.recvmsg(256, space, socket.MSG_CMSG_CLOEXEC)
    pids = {kind: _pid(kind, payload) for _, kind, payload in ancillary}
    for message in links.connection.receive(data):
        if not isinstance(message, Ready) or message.version != VERSION:
            raise RemoteProtocolError("the worker has another version of the protocol")
        # For a worker elsewhere the kernel there reported the pid, and here reports the relay.
        return pids.get(socket.SCM_RIGHTS if apart else socket.SCM_CREDENTIALS, 0)
    return 0


def _pid(kind: int, payload: bytes) -> int:
    """Return the sender's pid: the kernel's report, or the number in a file."""
    if kind == socket.SCM_CREDENTIALS:
        pid: int = _CREDENTIALS.unpack(payload)[0]
        return pid
    with open(_RIGHT.unpack(payload)[0], "rb", buffering=0) as file:
        return int(os.pread(file.fileno(), 20, 0) or 0)


def _read_report(links: SessionLinks) -> control_channel.Message | None:
    """Read the other messages of the session's processes or the zygote: how the session failed.

    The worker's report on its isolation, which comes before, is kept.
    """
    try:
        message = control_channel.receive(links.control)
        if message is not None and "findings" in message:
            links.findings = message["findings"]
            message = control_channel.receive(links.control)
        return message
    except OSError:
        return None


def _parent(pid: int, links: SessionLinks) -> int:
    """The parent of process `pid`."""
    try:
        parent: int = links.baseline.query("parent", pid)
    except FileNotFoundError as error:
        if not links.baseline.is_remote and _lives(pid):
            raise step_error("probe", error, links.tier) from None
        raise
    return parent


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process, which exists
    return True

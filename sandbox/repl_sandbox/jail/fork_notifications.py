"""A filter under which each fork and each request of a process waits for another process.

Covers: clone, clone3, fork and vfork, of threads too, and requests for descriptors
(native/session_door.h), by seccomp's notifications (seccomp_unotify(2), Linux 5.9, which reports
end of file once no process is left under a filter).
Does not cover: foreign system-call entries (i386, x32), which the tiers' own filter closes, and the
decision, which belongs to `zygote.fork_limiter`.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import struct
from errno import EAGAIN, ENOENT
from typing import Final, NamedTuple

from ..native.libc import number
from .seccomp import (
    ARCH_OFFSET,
    JEQ,
    NUMBER_OFFSET,
    SECCOMP_RET_ALLOW,
    SECCOMP_SET_MODE_FILTER,
    Assembler,
    Program,
    argument_offset,
    audit_arch,
    call_seccomp,
)

# uapi/linux/seccomp.h
SECCOMP_FILTER_FLAG_NEW_LISTENER: Final = 1 << 3
SECCOMP_RET_USER_NOTIF: Final = 0x7FC00000
_SECCOMP_USER_NOTIF_FLAG_CONTINUE: Final = 1
# _IOWR and _IOW of '!': a struct seccomp_notif of 80 bytes, a struct seccomp_notif_resp of 24.
_NOTIF_RECV: Final = 0xC0502100
_NOTIF_SEND: Final = 0xC0182101
_NOTIF_SET_FLAGS: Final = 0x40082104
_NOTIF_ADDFD: Final = 0x40182103
_NOTICE_SIZE: Final = 80
_ANSWER: Final = struct.Struct("=QqiI")  # id, value, errno, flags
# struct seccomp_notif: id, pid, flags, and struct seccomp_data: number, architecture, address of
# the instruction, arguments.
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_ADDED: Final = struct.Struct("=QIIII")  # id, flags, source, number in the other process, its flags
# Linux 6.6: the waiting process continues at once, on the processor of the answering one.
_FD_SYNC_WAKE_UP: Final = struct.pack("=Q", 1)
# Message with a listener: the process id of the session's init, its limit of processes, its uid.
_INTRODUCTION: Final = struct.Struct("=III")
_CALLS: Final = ("clone", "clone3", "fork", "vfork")
DOOR: Final = 0x7E5E5510  # native/session_door.h: no descriptor has this number


class Introduction(NamedTuple):
    """A session whose forks and requests wait for this process; `listener` is -1 if it cannot."""

    init: int
    max_processes: int
    uid: int
    listener: int


class Notice(NamedTuple):
    """A call that waits: the number to answer it by, and its arguments if it is a request."""

    id: int
    request: tuple[int, ...] = ()  # the arguments behind `DOOR`


def program() -> bytes:
    """Return the filter. OSError where the numbers of system calls are unknown."""
    assembler = Assembler()
    allow = assembler.ret(SECCOMP_RET_ALLOW)
    notify = assembler.ret(SECCOMP_RET_USER_NOTIF)
    assembler.jump(JEQ, DOOR, notify, allow)
    request = assembler.load(argument_offset(0))
    label = assembler.jump(JEQ, number("dup"), request, allow)
    for name in _CALLS:
        if (call := number(name)) >= 0:
            label = assembler.jump(JEQ, call, notify, label)
    label = assembler.load(NUMBER_OFFSET)
    assembler.jump(JEQ, audit_arch(), label, allow)
    assembler.load(ARCH_OFFSET)
    return assembler.assemble()


def load(filter_: bytes) -> int:
    """Make each fork of this process and its descendants wait; return the listener.

    This process has one thread, and may load filters.

    Raises:
        OSError: the kernel lacks such filters, or has given one to this process before.
    """
    fprog = Program.of(filter_)
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER
    return call_seccomp(SECCOMP_SET_MODE_FILTER, flags, ctypes.addressof(fprog))


def introduce(listener: int, limiter: socket.socket, init: int, max_processes: int) -> None:
    """Leave decisions about forks to `limiter`.

    `init`: all its descendants count. `max_processes`: their maximum number, threads included.
    """
    try:
        introduction = _INTRODUCTION.pack(init, max_processes, os.getuid())
        socket.send_fds(limiter, [introduction], [listener])
    finally:
        os.close(listener)


def receive(limiter: socket.socket) -> Introduction | None:
    """Return the message of `introduce`; None once all senders are gone.

    The listener is -1 where this process may open no more descriptors.
    """
    # In one piece, as they are sent; descriptors come with the data that they were sent with.
    data, ancillary, _, _ = limiter.recvmsg(_INTRODUCTION.size, socket.CMSG_SPACE(4))
    if not data:
        return None
    init, max_processes, uid = _INTRODUCTION.unpack(data)
    if not ancillary:
        return Introduction(init, max_processes, uid, -1)
    (listener,) = array.array("i", ancillary[0][2])
    try:
        fcntl.ioctl(listener, _NOTIF_SET_FLAGS, _FD_SYNC_WAKE_UP)
    except OSError:
        pass  # an older kernel
    return Introduction(init, max_processes, uid, listener)


def read_notice(listener: int) -> Notice | None:
    """Return the next waiting call; None if it no longer waits."""
    notice = bytearray(_NOTICE_SIZE)
    try:
        fcntl.ioctl(listener, _NOTIF_RECV, notice)
    except OSError as error:
        if error.errno == ENOENT:
            return None
        raise
    id_, _, _, call, _, _, *arguments = _NOTICE.unpack(notice)
    return Notice(id_, tuple(arguments[1:]) if call == number("dup") else ())


def answer(listener: int, fork: int, *, admitted: bool) -> None:
    """Let the fork happen, or make it fail with EAGAIN."""
    if admitted:
        _send(listener, fork, flags=_SECCOMP_USER_NOTIF_FLAG_CONTINUE)
    else:
        refuse(listener, fork, EAGAIN)


def refuse(listener: int, call: int, error: int) -> None:
    """Make the call fail with the errno `error`."""
    _send(listener, call, error=-error)


def give(listener: int, call: int, fd: int, *, inherited: bool) -> None:
    """Let the request return a duplicate of `fd`; `inherited`: by programs that it starts."""
    flags = 0 if inherited else os.O_CLOEXEC
    try:
        added = fcntl.ioctl(listener, _NOTIF_ADDFD, bytearray(_ADDED.pack(call, 0, fd, 0, flags)))
    except OSError as failure:
        refuse(listener, call, failure.errno or EAGAIN)
    else:
        _send(listener, call, value=added)


def _send(listener: int, call: int, *, value: int = 0, error: int = 0, flags: int = 0) -> None:
    try:
        fcntl.ioctl(listener, _NOTIF_SEND, bytearray(_ANSWER.pack(call, value, error, flags)))
    except OSError as failure:
        if failure.errno != ENOENT:  # it no longer waits
            raise

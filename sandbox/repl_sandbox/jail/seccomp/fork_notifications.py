"""A filter under which each fork of a process waits for the decision of another process.

Covers: clone, clone3, fork and vfork, of threads too, by seccomp's notifications
(seccomp_unotify(2), Linux 5.9, which reports end of file once no process is left under a filter).
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
from typing import Final

from ...native.libc import number
from .bpf import ARCH_OFFSET, JEQ, NUMBER_OFFSET, Assembler
from .seccomp_filters import (
    SECCOMP_RET_ALLOW,
    SECCOMP_SET_MODE_FILTER,
    Program,
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
_NOTICE_SIZE: Final = 80
_ANSWER: Final = struct.Struct("=QqiI")  # id, value, errno, flags
_ID: Final = struct.Struct("=Q")
# Linux 6.6: the waiting process continues at once, on the processor of the answering one.
_FD_SYNC_WAKE_UP: Final = struct.pack("=Q", 1)
# Message with a listener: the process id of the session's init, and its limit of processes.
_INTRODUCTION: Final = struct.Struct("=II")
_CALLS: Final = ("clone", "clone3", "fork", "vfork")


def program() -> bytes:
    """Return the filter. OSError where the numbers of system calls are unknown."""
    assembler = Assembler()
    allow = assembler.ret(SECCOMP_RET_ALLOW)
    notify = assembler.ret(SECCOMP_RET_USER_NOTIF)
    label = allow
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
        socket.send_fds(limiter, [_INTRODUCTION.pack(init, max_processes)], [listener])
    finally:
        os.close(listener)


def receive(limiter: socket.socket) -> tuple[int, int, int] | None:
    """Return the message of `introduce`: init, limit, listener; None once all senders are gone.

    The listener is -1 where this process may open no more descriptors.
    """
    # In one piece, as they are sent; descriptors come with the data that they were sent with.
    data, ancillary, _, _ = limiter.recvmsg(_INTRODUCTION.size, socket.CMSG_SPACE(4))
    if not data:
        return None
    init, max_processes = _INTRODUCTION.unpack(data)
    if not ancillary:
        return init, max_processes, -1
    (listener,) = array.array("i", ancillary[0][2])
    try:
        fcntl.ioctl(listener, _NOTIF_SET_FLAGS, _FD_SYNC_WAKE_UP)
    except OSError:
        pass  # an older kernel
    return init, max_processes, listener


def read_fork(listener: int) -> int | None:
    """Return the next waiting fork, as a number to answer it by; None if it no longer waits."""
    notice = bytearray(_NOTICE_SIZE)
    try:
        fcntl.ioctl(listener, _NOTIF_RECV, notice)
    except OSError as error:
        if error.errno == ENOENT:
            return None
        raise
    return int(_ID.unpack_from(notice)[0])


def answer(listener: int, fork: int, *, admitted: bool) -> None:
    """Let the fork happen, or make it fail with EAGAIN."""
    error, flags = (0, _SECCOMP_USER_NOTIF_FLAG_CONTINUE) if admitted else (-EAGAIN, 0)
    try:
        fcntl.ioctl(listener, _NOTIF_SEND, bytearray(_ANSWER.pack(fork, 0, error, flags)))
    except OSError as failure:
        if failure.errno != ENOENT:  # it no longer waits
            raise

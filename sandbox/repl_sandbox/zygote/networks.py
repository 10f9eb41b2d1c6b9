"""`NetworkNamespacePool`: each session has a network namespace of its own, reused if it is as new.

Its only interface is a loopback that is up: programs of a session serve each other on it, and no
packet leaves the namespace.

Of a session's namespaces this one costs the kernel most: creating and destroying it is a sixth of
the cost of opening and closing a session. So it is reused. It belongs to the template's user
namespace and not to the session's, in which capabilities of that namespace could configure it: no
process of a session ever has any here.

A session can leave sockets in transit through other sockets, and counters of its connections
(`_TRACES`), as of any that still lingers in TIME_WAIT. If there is any trace, or the namespace
cannot be inspected, it ends with its session.
Does not cover: which sockets are possible (seccomp).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from errno import EACCES, EEXIST, EFBIG, ENOENT, EPERM, EROFS

from ..jail.syscalls import SIOCSIFFLAGS
from ..native import libc

# Files of /proc/PID/net, proc_pid_net(5), that can differ after a session. Of the first file only
# the first line: the others count the memory of all sockets of the machine.
_SOCKETS = "sockstat"
_TRACES = ("snmp", "netstat")
_TRACES_OF_IPV6 = "snmp6"  # missing in some kernels
# Bytes of the longest, four times over. One buffer for all reads: new bytes would be more pages
# that the zygote writes to for each session.
_BUFFER_SIZE = 1 << 14

# Each takes a descriptor and some 160 kB of the kernel's memory, whether it waits or its session
# lives; a client that always opens and closes sessions has no more of them about to end.
_MAX_NAMESPACES = 32
# The number of these whose files stay open: four more descriptors each. The namespace that was
# freed last is used first, so few serve nearly all sessions of a client that opens one after the
# other.
_MAX_OPEN = 8
# Milliseconds. A client that opens sessions less often can wait for a new namespace; a user has a
# limited number (user.max_net_namespaces), which others may need.
_IDLE = 1000


class NetworkNamespace:
    """The namespace that this process is in, until `close`."""

    def __init__(self) -> None:
        """OSError: this process has no free descriptors."""
        self._own_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # Files about it. Reading one again composes it anew from anywhere, and the kernel knows its
        # size.
        self.files: list[int] = []

    def join(self) -> None:
        """Enter the namespace. OSError: this process has no permission."""
        libc.setns(self._own_namespace, libc.CLONE_NEWNET)

    def close(self) -> None:
        """Release the namespace, which ends when no process is in it."""
        self.close_files()
        os.close(self._own_namespace)

    def close_files(self) -> None:
        """Close the files that describe the namespace."""
        for fd in self.files:
            os.close(fd)
        self.files.clear()


class NetworkNamespacePool:
    """The namespaces of one zygote, which has its own, and is in a session's only to fork the
    session.
    """

    def __init__(self) -> None:
        _enter_new()
        self._home = NetworkNamespace()
        self._read = bytearray(_BUFFER_SIZE)
        try:
            self._initial = self._traces()
        except OSError:
            self._initial = []  # without a reference no namespace is reused
        self._free: list[NetworkNamespace] = []
        self._in_use: dict[
            int, NetworkNamespace
        ] = {}  # by session, except for the oldest, see `enter`

    def enter(self, session: int) -> None:
        """Enter the namespace of a new session; `leave` must follow."""
        if len(self._in_use) == _MAX_NAMESPACES:
            # For a session that has lasted, which may keep its namespace to its end.
            self.forget(next(iter(self._in_use)))
        if not self._free:
            _enter_new()
            self._in_use[session] = NetworkNamespace()
            return
        network = self._free.pop()
        if network in self._in_use.values():  # a bug in this file must not cost more
            raise OSError(EEXIST, "the network is another session's")
        self._in_use[session] = network
        network.join()

    def leave(self) -> None:
        """Return to the zygote's own namespace, or exit: it must not stay in a session's."""
        try:
            self._home.join()
        except OSError as error:
            os.write(2, f"the zygote cannot return to its own network: {error}\n".encode())
            os._exit(1)

    def forget(self, session: int) -> None:
        """Let the namespace of `session` end with it."""
        if session in self._in_use:
            self._in_use.pop(session).close()

    def recover(self, session: int) -> None:
        """Keep the namespace of `session`, which is gone, for another one, unless there are traces
        in it.
        """
        network = self._in_use.pop(session, None)
        if network is None:
            return
        if len(self._free) < _MAX_NAMESPACES and self._is_unchanged(network):
            self._free.append(network)
        else:
            network.close()

    def timeout_ms(self) -> int | None:
        """Milliseconds after which waiting namespaces are released; None: none wait."""
        return _IDLE if self._free else None

    def release_free(self) -> None:
        """Release all waiting namespaces."""
        for network in self._free:
            network.close()
        self._free.clear()

    def forked(self) -> None:
        """In a fork of the zygote: forget the parent's sessions and their namespaces."""
        self.release_free()
        for session in list(self._in_use):
            self.forget(session)

    def _is_unchanged(self, network: NetworkNamespace) -> bool:
        """Return whether sessions have left nothing in `network`."""
        try:
            if not network.files:
                self._open_files(network)
            for fd, (_, is_complete, begins) in zip(network.files, self._initial, strict=True):
                # The kernel writes each file whole if the buffer suffices.
                size = os.preadv(fd, (self._read,), 0)
                if (is_complete and size != len(begins)) or not self._read.startswith(begins):
                    return False
        except OSError:
            return False
        return bool(self._initial)

    def _open_files(self, network: NetworkNamespace) -> None:
        """Open the files of a namespace. OSError: it cannot be inspected."""
        opened = [other for other in (*self._in_use.values(), *self._free) if other.files]
        if len(opened) >= _MAX_OPEN:
            opened[0].close_files()  # usually the session that has lasted longest
        try:
            network.join()
            for path, _, _ in self._initial:
                network.files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            self.leave()

    def _traces(self) -> list[tuple[str, bool, bytes]]:
        """The traces in this process's namespace, by path: whether the rest is the whole file.

        Raises:
            OSError: a file cannot be read, or is too large.
        """
        traces = []
        for name in (_SOCKETS, *_TRACES, _TRACES_OF_IPV6):
            path = f"/proc/self/net/{name}"
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if name != _TRACES_OF_IPV6:
                    raise
                continue
            try:
                size = os.preadv(fd, (self._read,), 0)
            finally:
                os.close(fd)
            if size == _BUFFER_SIZE:
                raise OSError(EFBIG, "the file is longer than the read buffer", path)
            end = self._read.index(b"\n") + 1 if name == _SOCKETS else size
            traces.append((path, end == size, bytes(self._read[:end])))
        return traces


# Bounds of the kernel's memory for TCP in a namespace: a buffer as large as those of other sockets,
# and a wait after the end of a connection for as many as a server needs that starts again. The
# kernel's own, of megabytes and of 100,000 and more, are for networks.
_TCP_BOUNDS = (
    ("tcp_rmem", b"4096 131072 212992"),
    ("tcp_wmem", b"4096 16384 212992"),
    ("tcp_max_tw_buckets", b"1024"),
)
# struct ifreq: the interface's name and its flags; linux/if.h: IFF_UP, IFF_RUNNING.
_LOOPBACK = struct.pack("=16sh22x", b"lo", 0x1 | 0x40)
# Where a root may not configure networks, as in some containers, or settings are read-only there.
_REFUSALS = (EACCES, EPERM, EROFS, ENOENT)


def _enter_new() -> None:
    """Enter a new network namespace. Its loopback is up, unless TCP cannot be bounded here."""
    libc.unshare(libc.CLONE_NEWNET)
    try:
        for name, value in _TCP_BOUNDS:
            fd = os.open(f"/proc/sys/net/ipv4/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value)
            finally:
                os.close(fd)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, SIOCSIFFLAGS, _LOOPBACK)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise

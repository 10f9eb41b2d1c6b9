"""Network namespaces: a session is alone in its own, which is used again if it is left as new.

For a session the kernel works longest on this one of its namespaces: to make it and to take it down
is a sixth of what it costs to open and close a session. So it is used again. It belongs to the
template's user namespace and not to the session's, in which it would be configured by whoever gets
that namespace's capabilities: in here nobody of a session ever has any.

What a session can leave behind are sockets that are still on their way through other sockets, and
counts of what it tried (`_TRACES`). Where there is any of it, or it cannot be looked at, the
namespace goes with its session. Does not cover: which sockets there may be (seccomp).
"""

from __future__ import annotations

import os

from ..jail import libc

# Of /proc/PID/net, proc_pid_net(5): what can be different after a session. Of the first file the
# first line, for the others also count the memory of all sockets of the machine.
_SOCKETS = "sockstat"
_TRACES = ("snmp", "netstat", "snmp6")

# A descriptor and some 160 kB of the kernel's for each, of those that wait and of those whose
# sessions live; who opens and closes sessions all the time has no more that are about to end.
_MOST = 32


class Networks:
    """Those of one zygote. It has one itself, and is in a session's only while it forks that."""

    def __init__(self) -> None:
        libc.unshare(libc.CLONE_NEWNET)
        self._home = _here()
        self._as_new = _traces()
        self._free: list[int] = []
        self._lent: dict[int, int] = {}  # by session; not those of the oldest, see `enter`

    def enter(self, session: int) -> None:
        """Be in the network of a new session; `leave` must follow in this process."""
        if self._free:
            network = self._free.pop()
            libc.setns(network, libc.CLONE_NEWNET)
        else:
            libc.unshare(libc.CLONE_NEWNET)
            network = _here()
        if len(self._lent) == _MOST:
            # Of a session that has lasted, and which may keep its network to its end.
            self.forget(next(iter(self._lent)))
        self._lent[session] = network

    def leave(self) -> None:
        """Be in the zygote's own again."""
        libc.setns(self._home, libc.CLONE_NEWNET)

    def forget(self, session: int) -> None:
        """Have the network of `session` end with it."""
        if session in self._lent:
            os.close(self._lent.pop(session))

    def recover(self, session: int) -> None:
        """All of `session` is gone: keep its network for the next, if nothing in it tells of it."""
        network = self._lent.pop(session, None)
        if network is None:
            return
        if len(self._free) < _MOST and self._is_as_new(network):
            self._free.append(network)
        else:
            os.close(network)

    def forked(self) -> None:
        """In a fork of the zygote: the sessions are its parent's, and so are their networks."""
        for network in (*self._free, *self._lent.values()):
            os.close(network)
        self._free.clear()
        self._lent.clear()

    def _is_as_new(self, network: int) -> bool:
        libc.setns(network, libc.CLONE_NEWNET)
        try:
            return _traces() == self._as_new
        except OSError:
            return False
        finally:
            self.leave()


def _here() -> int:
    """A descriptor of the network namespace that this process, which has one thread, is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _traces() -> list[bytes]:
    """What sessions may have left in the network that this process is in."""
    return [_read(_SOCKETS).partition(b"\n")[0], *map(_read, _TRACES)]


def _read(name: str) -> bytes:
    """A file about this process's network, b"" if the kernel has none, as one without IPv6."""
    try:
        fd = os.open(f"/proc/self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        # The kernel writes each whole where there is room for it.
        return os.read(fd, _ROOM)
    finally:
        os.close(fd)


# Bytes; the longest has some 4,000.
_ROOM = 1 << 16

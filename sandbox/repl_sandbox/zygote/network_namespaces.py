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
from errno import EEXIST, EFBIG

from ..native import libc

# Of /proc/PID/net, proc_pid_net(5): what can be different after a session. Of the first file the
# first line, for the others also count the memory of all sockets of the machine.
_SOCKETS = "sockstat"
_TRACES = ("snmp", "netstat")
_TRACES_OF_IPV6 = "snmp6"  # which a kernel need not have
# Bytes of the longest, four times over. One room for all that are read: bytes of their own would be
# more pages that the zygote writes to for each session.
_ROOM = 1 << 14

# A descriptor and some 160 kB of the kernel's for each, of those that wait and of those whose
# sessions live; who opens and closes sessions all the time has no more that are about to end.
_MOST = 32
# Of these, whose files are kept open: four more descriptors each. The one that was free last is the
# next session's, so few serve nearly all sessions of who opens one after the other.
_MOST_OPEN = 8
# Milliseconds. Who opens fewer sessions than one in that time can wait for a network to be made; a
# user has only so many (user.max_net_namespaces), which others may need.
_IDLE = 1000


class NetworkNamespace:
    """The one that this process is in, until `close`."""

    def __init__(self) -> None:
        """OSError: this process may open no more descriptors."""
        self._here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # Files about it. Who reads one again has it composed anew, but need not be in there, and
        # the kernel knows how much room it takes.
        self.files: list[int] = []

    def join(self) -> None:
        """Be in it. OSError: this process may not."""
        libc.setns(self._here, libc.CLONE_NEWNET)

    def close(self) -> None:
        """It ends when nobody is in it."""
        self.close_files()
        os.close(self._here)

    def close_files(self) -> None:
        """Look into it no more."""
        for fd in self.files:
            os.close(fd)
        self.files.clear()


class NetworkNamespacePool:
    """Those of one zygote. It has one itself, and is in a session's only while it forks that."""

    def __init__(self) -> None:
        libc.unshare(libc.CLONE_NEWNET)
        self._home = NetworkNamespace()
        self._read = bytearray(_ROOM)
        try:
            self._as_new = self._traces()
        except OSError:
            self._as_new = []  # nothing to compare with: no network is used again
        self._free: list[NetworkNamespace] = []
        self._lent: dict[
            int, NetworkNamespace
        ] = {}  # by session; not those of the oldest, see `enter`

    def enter(self, session: int) -> None:
        """Be in the network of a new session; `leave` must follow in this process."""
        if len(self._lent) == _MOST:
            # Of a session that has lasted, and which may keep its network to its end.
            self.forget(next(iter(self._lent)))
        if not self._free:
            libc.unshare(libc.CLONE_NEWNET)
            self._lent[session] = NetworkNamespace()
            return
        network = self._free.pop()
        if network in self._lent.values():  # by a mistake of this file's, which must not cost more
            raise OSError(EEXIST, "the network is another session's")
        self._lent[session] = network
        network.join()

    def leave(self) -> None:
        """Be in the zygote's own again. One that cannot ends: it would stay in a session's."""
        try:
            self._home.join()
        except OSError as error:
            os.write(2, f"the zygote cannot return to its own network: {error}\n".encode())
            os._exit(1)

    def forget(self, session: int) -> None:
        """Have the network of `session` end with it."""
        if session in self._lent:
            self._lent.pop(session).close()

    def recover(self, session: int) -> None:
        """All of `session` is gone: keep its network for the next, if nothing in it tells of it."""
        network = self._lent.pop(session, None)
        if network is None:
            return
        if len(self._free) < _MOST and self._is_as_new(network):
            self._free.append(network)
        else:
            network.close()

    def patience(self) -> int | None:
        """Milliseconds after which those that wait for sessions are to be let go; None: none do."""
        return _IDLE if self._free else None

    def let_go(self) -> None:
        """Keep none that waits for a session."""
        for network in self._free:
            network.close()
        self._free.clear()

    def forked(self) -> None:
        """In a fork of the zygote: the sessions are its parent's, and so are their networks."""
        self.let_go()
        for session in list(self._lent):
            self.forget(session)

    def _is_as_new(self, network: NetworkNamespace) -> bool:
        """Whether there is nothing in `network` that sessions may have left there."""
        try:
            if not network.files:
                self._open_files(network)
            for fd, (_, whole, begins) in zip(network.files, self._as_new, strict=True):
                # The kernel writes each whole where there is room for it.
                size = os.preadv(fd, (self._read,), 0)
                if (whole and size != len(begins)) or not self._read.startswith(begins):
                    return False
        except OSError:
            return False
        return bool(self._as_new)

    def _open_files(self, network: NetworkNamespace) -> None:
        """OSError: it cannot be looked into."""
        looked_into = [other for other in (*self._lent.values(), *self._free) if other.files]
        if len(looked_into) >= _MOST_OPEN:
            looked_into[0].close_files()  # as a rule of the session that has lasted longest
        try:
            network.join()
            for path, _, _ in self._as_new:
                network.files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            self.leave()

    def _traces(self) -> list[tuple[str, bool, bytes]]:
        """Of the network that this process is in, by path: whether what follows is the whole file.

        Raises:
            OSError: one cannot be read, or there is no room for all of it.
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
            if size == _ROOM:
                raise OSError(EFBIG, "it is longer than what there is to read it into", path)
            end = self._read.index(b"\n") + 1 if name == _SOCKETS else size
            traces.append((path, end == size, bytes(self._read[:end])))
        return traces

"""The floor of a session: a warm parent that forks a child per request, with no isolation at all.

`Parent` is the handle to the program `bare_fork_parent.py`. Its children answer over a socket (like
a session) or over a pair of pipes (the least that a step can be). Nothing here is a way to run code
of others.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_PROGRAM = Path(__file__).with_name("bare_fork_parent.py")
_ANSWER_BYTES = 1 << 16


class Session:
    """A forked child that evaluates what it is sent."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._socket, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(parent, [b"session"], [theirs.fileno()])

    def run(self, code: str) -> str:
        """The repr of `code`, an expression."""
        self._socket.send(code.encode())
        return self._socket.recv(_ANSWER_BYTES).decode()

    def put(self, data: bytes) -> int:
        """Move `data` into the child by memfd; the length of the text it holds after decoding."""
        fd = os.memfd_create("context")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            socket.send_fds(self._socket, [b"put"], [fd])
        finally:
            os.close(fd)
        return int(self._socket.recv(_ANSWER_BYTES))

    def close(self) -> None:
        """End the child and wait until it is reaped."""
        self._socket.close()
        self._parent.send(b"reap")
        self._parent.recv(_ANSWER_BYTES)


class Pipes:
    """A forked child on a pair of pipes that executes what it reads."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        socket.send_fds(parent, [b"pipes"], [theirs_in, theirs_out])
        os.close(theirs_in)
        os.close(theirs_out)

    def step(self, code: bytes) -> bytes:
        """Have `code` executed, and wait for the sign that it was."""
        os.write(self._write, code)
        return os.read(self._read, 16)

    def close(self) -> None:
        """End the child and wait until it is reaped."""
        os.close(self._write)
        os.close(self._read)
        self._parent.send(b"reap")
        self._parent.recv(_ANSWER_BYTES)


class Parent:
    """The warm parent process."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                # The interpreter and its flags are those of our zygote.
                [sys.executable, "-I", "-X", "utf8", _PROGRAM, str(theirs.fileno()), *preload],
                pass_fds=[theirs.fileno()],
                # One thread, as in our zygote: BLAS would start one per core.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        if self._socket.recv(_ANSWER_BYTES) != b"ready":
            raise RuntimeError("the bare-fork parent did not start")

    @property
    def pid(self) -> int:
        """The process id of the parent."""
        return self._process.pid

    def session(self) -> Session:
        """Fork a child that answers over a socket."""
        return Session(self._socket)

    def pipes(self) -> Pipes:
        """Fork a child that answers over pipes."""
        return Pipes(self._socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

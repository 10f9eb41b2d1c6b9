"""`FileClient`: the host's end of a file helper, a child of init for one operation on files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EAGAIN, EINVAL, ELOOP, ENOSPC, ENOTDIR
from typing import TypeVar

from ...errors import SandboxError, SessionClosed
from ...protocol import control_channel
from ..core import Core
from ..recovery import CLOSED_AMID

_T = TypeVar("_T")

# Seconds for one attempt: code with the helper's uid may be able to stop and continue it, before
# Linux 6.12. A helper starts in milliseconds; a machine that swaps takes a thousand times that.
_TIMEOUT = 60.0
# The death of a worker ends a helper at work. No other worker can die before a cell runs, so the
# session's code must have killed the second helper, and would kill the third.
_ATTEMPTS = 2

# Errors for which the kernel's text says too little, or something else.
_WORDS = {
    EAGAIN: "Processes of the session are at their limit, or hold the file",
    EINVAL: "Not a regular file",
    ELOOP: "A symbolic link, which is not followed",
    ENOTDIR: "Not a directory (links are not followed)",
}


class _NoAnswer(Exception):
    """The helper ended before it answered."""


class FileClient:
    """The host's end of a helper's socket, with a limit in seconds for the whole conversation."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = sock, timeout
        self._until = time.monotonic() + timeout

    def renew(self) -> None:
        """Begin the time limit anew."""
        self._until = time.monotonic() + self._timeout

    def next(self, request: control_channel.Message) -> tuple[control_channel.Message, int]:
        """Return the answer to one more request."""
        try:
            control_channel.send(self._socket, request)
        except (BrokenPipeError, ConnectionResetError):
            raise _NoAnswer from None
        return self.receive()

    def receive(self) -> tuple[control_channel.Message, int]:
        """Return the next message, and the descriptor that came with it or -1."""
        # Zero would not wait at all, and raise another error.
        self._socket.settimeout(max(self._until - time.monotonic(), 0.001))
        try:
            message, descriptors = control_channel.receive_with_descriptors(self._socket)
        except TimeoutError:
            raise SandboxError(
                f"the session's files were not available within {self._timeout:g} s"
            ) from None
        except ConnectionResetError:
            raise _NoAnswer from None
        if message is None:
            raise _NoAnswer
        return message, descriptors[0] if descriptors else -1


def ask(
    core: Core,
    paths: Sequence[str],
    request: control_channel.Message,
    take: Callable[[control_channel.Message, FileClient, int], _T],
    descriptors: Sequence[int] = (),
    extra_seconds: float = 0.0,
) -> _T:
    """Run a helper, and return what `take` makes of its answer: message, data, descriptor.

    `extra_seconds`: seconds more than for a small operation.

    Raises:
        OSError: the helper's error, with the path of `paths` at which it occurred.
        SandboxError, SessionClosed: the helper does not answer, or init is gone.
    """
    for _ in range(_ATTEMPTS):
        with (
            _request(core, "files", request, descriptors, _TIMEOUT + extra_seconds) as helper,
            suppress(_NoAnswer),
        ):
            message, fd = helper.receive()
            try:
                if "errno" in message:
                    raise refusal(core, message["errno"], paths[message.get("at", 0)])
                return take(message, helper, fd)
            finally:
                if fd >= 0:
                    os.close(fd)
    raise _ended(core, paths[0])


@contextmanager
def conversation(core: Core, path: str, request: control_channel.Message) -> Iterator[FileClient]:
    """Run a helper for further requests, after its answer to the first.

    Raises:
        OSError, SandboxError, SessionClosed: as `ask`, also in the block.
    """
    with _request(core, "files", request, (), _TIMEOUT) as helper:
        try:
            message, _ = helper.receive()
            if "errno" in message:
                raise refusal(core, message["errno"], path)
            yield helper
        except _NoAnswer:
            raise _ended(core, path) from None


def _ended(core: Core, path: str) -> SandboxError:
    """The error for a helper that ended before it answered."""
    if core.io.closing:
        return _closed_error(core)
    return SandboxError(
        f"{path or '.'}: processes of the session ended the one that works on its files"
    )


@contextmanager
def _request(
    core: Core,
    op: str,
    request: control_channel.Message,
    descriptors: Sequence[int],
    timeout: float,
) -> Iterator[FileClient]:
    """Return the host's end of a socket with `request` in it; init gets the other end for `op`.

    For "files" init starts a helper, "keep" it answers itself.
    """
    host_end, helper_end = control_channel.pair()
    with host_end:
        with helper_end:
            control_channel.send(host_end, request, descriptors)
            core.io.init.was_used = True
            try:
                control_channel.send(core.links.control, {"op": op}, (helper_end.fileno(),))
            except BlockingIOError:
                message = "the session's init does not answer; close the session"
                raise SandboxError(message) from None
            except OSError as error:
                raise _closed_error(core) from error
        yield FileClient(host_end, timeout)


def request_keep(core: Core) -> None:
    """Have init keep the current files as those after the last cell.

    Raises:
        SandboxError, SessionClosed: init does not answer, or is gone.
    """
    with _request(core, "keep", {"cell": core.recovery.history.last}, (), _TIMEOUT) as init:
        try:
            init.receive()
        except _NoAnswer:
            raise _closed_error(core) from None


def _closed_error(core: Core) -> SessionClosed:
    """The error for an init that does not answer any more."""
    if core.io.closing:
        return SessionClosed(CLOSED_AMID)
    return SessionClosed("the session's init process is gone; open another session")


def refusal(core: Core, errno: int, path: str) -> OSError:
    """Return the error for `path`; where space is missing, it names the limit."""
    detail = f"the limit is {int(core.limits.workspace):,} bytes (workspace)"
    return error_of(errno, path, detail if errno == ENOSPC else "")


def error_of(errno: int, path: str, detail: str = "") -> OSError:
    """Return the error of this number, with an explanation."""
    words = _WORDS.get(errno) or os.strerror(errno)
    return OSError(errno, f"{words}; {detail}" if detail else words, path)

"""The event loop of a command, in which no Ctrl-C is seen late."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_READ = 4096  # bytes; of a signal there is one


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """asyncio.run(`coroutine`), in the main thread; Ctrl-C cancels it and is KeyboardInterrupt."""
    with asyncio.Runner() as runner, _woken_by_signals(runner.get_loop()):
        return runner.run(coroutine)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a signal end a wait of `loop`, also one that comes just before the wait.

    Python's handlers run between two of its own instructions. After the last one before
    epoll_wait(2) a signal is only taken note of: that call is not interrupted, and whatever the
    loop waits for comes first. See signal.set_wakeup_fd.
    """
    read, write = socket.socketpair()
    with read, write:
        read.setblocking(False)
        write.setblocking(False)
        loop.add_reader(read, read.recv, _READ)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(read)

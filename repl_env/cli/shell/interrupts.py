"""Ctrl-C while a cell runs: the first interrupts the cell, the second leaves it to the engine."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

# Seconds after which someone who pressed Ctrl-C wonders whether it was seen.
_PATIENCE = 1.0


class InterruptHandler:
    """While this is entered, SIGINT calls `interrupt`; a second one raises KeyboardInterrupt.

    `interrupt` takes a lock that the interrupted thread may hold, so a thread of its own calls it.
    `waiting` is called from that thread when the cell goes on for a second after the first Ctrl-C.
    Off the main thread, which alone gets signals, nothing is changed.
    """

    def __init__(self, interrupt: Callable[[], None], waiting: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._waiting = waiting
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._count = 0
        self._before: Any = None
        self._thread = threading.Thread(target=self._serve, name="interrupting", daemon=True)
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> InterruptHandler:
        if self._is_main:
            self._thread.start()
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
            self._asked.put(False)
            self._thread.join()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._asked.put(True)  # reentrant, unlike other queues

    def _serve(self) -> None:
        from repl_sandbox.errors import SandboxError

        if not self._asked.get():
            return
        with suppress(SandboxError):
            self._interrupt()
        try:
            self._asked.get(timeout=_PATIENCE)
        except queue.Empty:
            self._waiting()
            self._asked.get()

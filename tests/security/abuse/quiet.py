"""A quiet session beside an attack: it tells a slow machine from a slow session.

A bound in seconds holds on an idle machine. On a busy one the quiet session, in the same sandbox,
waits as well, and computes as slowly. So an attack may be as late as the machine is, and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from repl_sandbox import Sandbox, Session

# Seconds that a user accepts beyond a promised limit, on an idle machine.
LATE = 1.0
# The waits of an attack for one of the quiet session: the end of a worker, a snapshot that fails,
# and an empty worker instead; and the attack itself keeps a processor busy.
_ROUNDS = 4
# Seconds between two rounds, and the part of the time that they may take.
_PAUSE, _SHARE = 0.1, 0.2
# Of some processor time: the time that it takes, in multiples of it.
_COMPUTE = """
began, computed = time.monotonic(), time.thread_time()
while time.thread_time() < computed + 0.03: pass
(time.monotonic() - began) / (time.thread_time() - computed)
"""


class Quiet:
    """Ends the worker of its session again and again, as attacks do, and measures the recovery."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._began = 0.0
        self._worst = 0.0
        self._slowness = 1.0  # the wall-clock time of computing, in multiples of an idle machine's
        self._latest = self._worst, self._slowness

    def start(self) -> None:
        """Begin to measure."""
        self._session.run("import os, time")
        self._measure()
        self._thread.start()

    def stop(self) -> None:
        """End the measurements."""
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """Forget all but the latest round: an attack begins, and may end before the next."""
        self._worst, self._slowness = self._latest

    @property
    def slack(self) -> float:
        """Seconds by which an attack that has begun may be late."""
        running = time.monotonic() - self._began if self._began else 0.0
        return (LATE + _ROUNDS * max(self._worst, running)) * self._slowness

    def _watch(self) -> None:
        while not self._over.wait(max(_PAUSE, self._latest[0] / _SHARE)):
            self._measure()

    def _measure(self) -> None:
        self._began = time.monotonic()
        self._session.run("os._exit(1)")
        took = time.monotonic() - self._began
        self._worst, self._began = max(self._worst, took), 0.0
        computed = float(self._session.run(_COMPUTE).value or 1.0)
        self._slowness = max(self._slowness, computed)
        self._latest = took, computed


@contextmanager
def quiet_beside(sandbox: Sandbox) -> Iterator[Quiet]:
    """Measure in a session of `sandbox` for the duration of the block."""
    with sandbox.session() as session:
        quiet = Quiet(session)
        quiet.start()
        try:
            yield quiet
        finally:
            quiet.stop()

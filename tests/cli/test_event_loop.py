"""Commands run their event loop so that no Ctrl-C is seen late."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from repl_env.cli import event_loop
from tests.waiting import PATIENCE

# C code alone runs between the signal and epoll_wait(2), as where one strikes just before that.
_LATE = """
import asyncio, ctypes, itertools, operator, signal, sys
from repl_env.cli import event_loop

class Struck:
    def __init__(self, epoll):
        self.epoll = epoll

    def poll(self, seconds, most):
        calls = [(self.epoll.poll, seconds, most)]
        if seconds in (None, -1):
            calls.insert(0, (ctypes.CDLL(None)["raise"], signal.SIGINT))
        return list(itertools.starmap(operator.call, calls))[-1]

    def __getattr__(self, name):
        return getattr(self.epoll, name)

async def main():
    selector = asyncio.get_running_loop()._selector
    selector._selector = Struck(selector._selector)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled")
        raise

try:
    event_loop.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_that_strikes_as_the_loop_begins_to_wait_is_not_late() -> None:
    program = [sys.executable, "-c", _LATE]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout.split(), done.stderr) == (["cancelled", "interrupted"], "")


def test_what_it_runs_returns_and_raises_as_ever() -> None:
    async def told() -> int:
        return 5

    async def wrong() -> None:
        raise LookupError("of its own")

    before = signal.set_wakeup_fd(-1)
    assert event_loop.run(told()) == 5
    with pytest.raises(LookupError, match="of its own"):
        event_loop.run(wrong())
    assert signal.set_wakeup_fd(before) == -1

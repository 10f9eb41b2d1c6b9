"""Commands run their event loop so that no Ctrl-C is seen late."""

from __future__ import annotations

import signal

import pytest

from repl_env.cli import main
from tests.late_signals import told_by

_STRUCK = """
import asyncio
from repl_env.cli import main as command_line
from tests.late_signals import struck

class Struck:
    def __init__(self, epoll):
        self.epoll = epoll

    def poll(self, seconds, most):
        if seconds in (None, -1):
            return struck(self.epoll.poll, seconds, most)
        return self.epoll.poll(seconds, most)

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
    command_line.run_loop(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_as_the_loop_begins_to_wait_is_handled_at_once() -> None:
    assert told_by(_STRUCK) == ["cancelled", "interrupted"]


def test_results_and_exceptions_of_the_loop_are_unchanged() -> None:
    async def told() -> int:
        return 5

    async def wrong() -> None:
        raise LookupError("of its own")

    before = signal.set_wakeup_fd(-1)
    assert main.run_loop(told()) == 5
    with pytest.raises(LookupError, match="of its own"):
        main.run_loop(wrong())
    assert signal.set_wakeup_fd(before) == -1

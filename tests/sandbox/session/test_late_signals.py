"""A Ctrl-C as a session begins to wait for its worker is handled before the cell ends."""

from __future__ import annotations

import pytest

from tests.late_signals import told_by

_STRUCK = """
import select
from repl_sandbox import Sandbox
from repl_sandbox.session.batch import SessionBatch
from tests.late_signals import struck

plain, armed = select.poll, []

class Struck:
    def __init__(self):
        self.of_c = plain()

    def poll(self, *wait):
        if armed:
            armed.clear()
            return struck(self.of_c.poll, *wait)
        return self.of_c.poll(*wait)

    def __getattr__(self, name):
        return getattr(self.of_c, name)

FOR_EVER = "import signal; signal.pause()"
with Sandbox() as sandbox:
    select.poll = Struck
    with sandbox.session() as session:
        session.run("x = 1")
        armed.append(True)
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", session.run("x").value)
"""


@pytest.mark.parametrize(
    "wait",
    ["session.run(FOR_EVER, timeout=1e6)", "SessionBatch().run([(session, FOR_EVER, 1e6)])"],
    ids=["one", "batch"],
)
def test_ctrl_c_as_a_wait_begins_is_handled_at_once(wait: str) -> None:
    assert told_by(_STRUCK.format(wait=wait)) == ["interrupted", "1"]

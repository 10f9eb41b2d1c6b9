"""The host's requests to its zygote, and the answers that nobody waits for."""

from __future__ import annotations

import socket

import pytest

from repl_sandbox import Sandbox
from repl_sandbox.zygote import control
from repl_sandbox.zygote.handle import ZygoteHandle


def test_sessions_that_nobody_waits_for_do_not_block_the_zygote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it says of their ends nobody reads, and its socket holds only so much of it."""
    pair = control.pair

    def narrow() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there can be
        return ours, theirs

    monkeypatch.setattr(control, "pair", narrow)
    with Sandbox(recovery="restart") as sandbox:
        zygote: ZygoteHandle = sandbox._zygote
        monkeypatch.undo()
        for _ in range(20):
            zygote.abandon(zygote.begin(0, 1 << 20, {}))
        with sandbox.session() as session:
            assert session.run("6 * 7").value == "42"

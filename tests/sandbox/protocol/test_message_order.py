"""The table of allowed orders, by itself and as docs/protocol.md shows it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from repl_sandbox.protocol.connection import TRANSITIONS, ProtocolPhase
from repl_sandbox.protocol.messages import (
    Answered,
    HostCall,
    HostMessage,
    HostReply,
    Message,
    Ready,
    Result,
    WorkerMessage,
)

PROTOCOL = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
MESSAGES = [*get_args(WorkerMessage), *get_args(HostMessage)]


def as_markdown() -> str:
    """Return the table with a row for each message and a column for each phase."""
    rows = [["message", "from", *(f"`{phase.name}`" for phase in ProtocolPhase)]]
    rows.append(["---"] * len(rows[0]))
    for message in MESSAGES:
        side = "host" if message in get_args(HostMessage) else "worker"
        following = [TRANSITIONS[phase].get(message) for phase in ProtocolPhase]
        cells = ["–" if after is None else f"→ `{after.name}`" for after in following]
        rows.append([f"`{message.__name__}`", side, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_document_has_the_table():
    assert as_markdown() in PROTOCOL


def test_every_message_has_one_sender():
    assert set(get_args(HostMessage)).isdisjoint(get_args(WorkerMessage))
    assert set(MESSAGES) == set(get_args(Message))


def test_every_phase_has_a_row_and_every_message_is_used():
    assert set(TRANSITIONS) == set(ProtocolPhase)
    assert {message for row in TRANSITIONS.values() for message in row} == set(MESSAGES)


def test_a_conversation_begins_with_ready():
    assert TRANSITIONS[ProtocolPhase.BOOTING] == {Ready: ProtocolPhase.IDLE}


@pytest.mark.parametrize(
    "phase", [phase for phase in ProtocolPhase if phase is not ProtocolPhase.BOOTING]
)
def test_ready_is_sent_once(phase):
    assert Ready not in TRANSITIONS[phase]


@pytest.mark.parametrize(
    "phase", [phase for phase in ProtocolPhase if phase is not ProtocolPhase.BOOTING]
)
@pytest.mark.parametrize("message", [HostCall, Answered, HostReply])
def test_a_call_and_its_reply_change_no_phase(phase, message):
    assert TRANSITIONS[phase][message] is phase


def test_the_host_has_one_request_at_a_time():
    """While a cell runs or a request is open, the host sends only replies."""
    for phase in (ProtocolPhase.RUNNING, ProtocolPhase.ASKING):
        assert set(TRANSITIONS[phase]) & set(get_args(HostMessage)) == {HostReply}


def test_only_the_worker_ends_a_cell_and_only_by_a_result():
    leaving = {
        m
        for m, after in TRANSITIONS[ProtocolPhase.RUNNING].items()
        if after is not ProtocolPhase.RUNNING
    }
    assert leaving == {Result}


def test_from_every_phase_idle_can_be_reached_again():
    for phase in ProtocolPhase:
        assert ProtocolPhase.IDLE in TRANSITIONS[phase].values()

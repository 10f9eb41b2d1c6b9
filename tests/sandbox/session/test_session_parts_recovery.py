"""Recovery, questions and branches of a session, each by itself."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from repl_sandbox import SandboxError, SessionClosed
from repl_sandbox.protocol.messages import (
    MEMFD,
    Assign,
    Configure,
    Failed,
    Fetch,
    HostCall,
    HostReply,
    Restored,
    Value,
)
from repl_sandbox.session.recovery import Branches, NamespaceQueries, Recovery
from repl_sandbox.types import State
from repl_sandbox.worker.branch import ASK_FOR_BRANCH
from tests.sandbox.session.session_peer import LIMITS, Peer, drive, ready
from tests.waiting import eventually


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer(Configure((), 7, None), optional=False)
    yield peer
    peer.close()


def ran(peer: Peer, *cells: int, snapshots: int = 3) -> Recovery:
    """A recovery part that has run `cells` and was configured."""
    recovery = peer.recovery(snapshots)
    peer.io.send_configuration()
    peer.hear()
    for cell in cells:
        recovery.history.add(cell)
    return recovery


def woken(peer: Peer, cell: int, *lost: str) -> list[Callable[[], object]]:
    """Init wakes the snapshot of `cell`."""
    return [
        lambda: peer.send({"revived": True, "cpu": 1.0, "lost": []}),
        lambda: peer.start_worker(Restored(cell, lost)),
    ]


# ── Recovery ──────────────────────────────────────────────────────────────────────────────────────


def test_the_latest_snapshot_takes_over_from_a_dead_worker(peer: Peer) -> None:
    recovery = ran(peer, 1, 2)
    peer.die(cpu=2.0)
    state = drive(recovery.replace(), peer.io, *woken(peer, 2, "a thread"))
    assert state == "rolled_back" and peer.hear_orders() == ["revive"]
    assert peer.io.worker.lost == ("a thread",)
    assert peer.io.worker.cpu_of_ended == 3.0  # of the worker, and of the snapshot until then
    assert recovery.history.last == 2 and not peer.io.worker.dead
    assert peer.io.configuration.is_known  # it is a snapshot of a configured worker


def test_cells_after_the_snapshot_are_reported_as_undone(peer: Peer) -> None:
    recovery = ran(peer, 1, 2, 3)
    peer.die()
    drive(recovery.replace(), peer.io, *woken(peer, 1))
    assert recovery.history.last == 1
    assert peer.io.worker.lost == ("the effects of cells 2 to 3: no later snapshot was made",)


@pytest.mark.parametrize(
    ("snapshots", "cells", "orders", "state"),
    [
        (3, (1,), ["revive", "start"], "restarted"),  # the snapshot has ended
        (3, (), ["start"], "rolled_back"),  # an empty namespace needs no snapshot
        (-1, (1,), ["start"], "restarted"),
    ],
)
def test_without_a_snapshot_an_empty_worker_takes_over(
    peer: Peer, snapshots: int, cells: tuple[int, ...], orders: list[str], state: State
) -> None:
    recovery = ran(peer, *cells, snapshots=snapshots)
    refusal = [lambda: peer.send({"revived": False, "lost": ["the copy"]})]
    peer.die()
    acts = refusal if "revive" in orders else []
    assert drive(recovery.replace(), peer.io, *acts, peer.start_worker) == state
    assert peer.hear_orders() == orders
    assert not recovery.history and not peer.io.configuration.is_known
    assert peer.io.init.worker_number == 1


def test_a_snapshot_that_dies_as_it_is_woken_is_followed_by_an_empty_worker(peer: Peer) -> None:
    recovery = ran(peer, 1)

    def begin_and_end() -> None:
        peer.start_worker()
        peer.worker.close()

    peer.die()
    acts = [woken(peer, 1)[0], begin_and_end, peer.start_worker]
    assert drive(recovery.replace(), peer.io, *acts) == "restarted"
    assert peer.hear_orders() == ["revive", "start"]


def test_without_init_the_session_is_closed(peer: Peer) -> None:
    recovery = ran(peer, 1)
    peer.worker.close()
    peer.control.close()
    with pytest.raises(SessionClosed, match="init process is gone"):
        drive(recovery.replace(), peer.io)


def test_a_worker_whose_end_is_not_reported_is_ended(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repl_sandbox.session.recovery.NOTICE_TIMEOUT", -1.0)
    recovery = ran(peer)
    peer.worker.close()
    peer.io.receive(ready(peer.io))
    steps = recovery.collect_death()
    next(steps)
    steps.send([])
    assert peer.hear_orders() == ["kill"] and peer.io.worker.is_unresponsive
    peer.send({"died": 1, "status": signal.SIGKILL, "cpu": 0.0})
    with pytest.raises(StopIteration):
        steps.send(ready(peer.io))


def test_a_worker_that_cannot_be_connected_is_tried_again(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = ran(peer, snapshots=-1)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    peer.die()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", refuse)
        with pytest.raises(SandboxError, match="could not be connected"):
            drive(recovery.replace(), peer.io)
    assert drive(recovery.replace(), peer.io, peer.start_worker) == "restarted"
    # Init counts the workers that it has started, so the host must have counted as many.
    peer.die(number=2)
    peer.io.receive(ready(peer.io))
    peer.io.receive(ready(peer.io))
    assert peer.io.worker.notice is not None


def test_a_rollback_wakes_the_snapshot_of_that_cell(peer: Peer) -> None:
    recovery = ran(peer, 1, 2, 3)
    peer.configuration.emptied(keeps_variables=True)  # like an unconfigured worker
    lost = drive(recovery.rollback(2), peer.io, *woken(peer, 1, "a socket"))
    assert lost == ("a socket",) and peer.io.worker.lost == ()
    peer.hear_orders()
    assert peer.orders[0]["cell"] == 1 and recovery.history.last == 1
    assert peer.configuration.is_known


def test_a_rollback_without_a_snapshot_leaves_the_session_unchanged(peer: Peer) -> None:
    recovery = ran(peer, 1, 2)
    refusal = {"revived": False, "lost": []}
    with pytest.raises(SandboxError, match="The session is unchanged"):
        drive(recovery.rollback(1), peer.io, lambda: peer.send(refusal))
    assert recovery.history.last == 2 and not peer.io.worker.dead


@pytest.mark.parametrize(
    ("snapshots", "cells", "error"),
    [
        (3, True, TypeError),
        (3, 0, ValueError),
        (3, 4, ValueError),
        (3, 3, ValueError),
        (-1, 1, SandboxError),
    ],
)
def test_an_invalid_rollback_is_refused(
    peer: Peer, snapshots: int, cells: Any, error: type[Exception]
) -> None:
    recovery = ran(peer, 1, 2, snapshots=snapshots)
    with pytest.raises(error):
        drive(recovery.rollback(cells), peer.io)
    assert peer.hear_orders() == []


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────


def questions(peer: Peer, *cells: int) -> NamespaceQueries:
    recovery = ran(peer, *cells)
    return NamespaceQueries(peer.io, peer.cell, recovery, peer.completion, LIMITS)


def test_a_request_is_answered(peer: Peer) -> None:
    asked = questions(peer)
    answer = drive(asked.ask(Fetch("x")), peer.io, peer.hear, lambda: peer.say(Value(b"1")))
    assert answer == Value(b"1") and not asked.is_waiting
    refusal = Failed("unknown", "no x")
    assert drive(asked.ask(Fetch("x")), peer.io, peer.hear, lambda: peer.say(refusal)) == refusal


@pytest.mark.parametrize(
    ("cells", "acts", "came_to"),
    [((1,), woken, "has again what it had"), ((), None, "has again what it had")],
)
def test_a_worker_that_dies_during_a_request_is_replaced(
    peer: Peer, cells: tuple[int, ...], acts: Any, came_to: str
) -> None:
    replacing = woken(peer, 1) if acts else [peer.start_worker]
    asked = questions(peer, *cells)
    with pytest.raises(SandboxError, match=came_to):
        drive(asked.ask(Fetch("x")), peer.io, peer.die, *replacing)
    assert not peer.io.worker.emptied


def test_a_request_that_empties_the_session_reports_it(peer: Peer) -> None:
    asked = questions(peer, 1)
    gone = {"revived": False, "lost": []}
    acts = [peer.die, lambda: peer.send(gone), peer.start_worker]
    with pytest.raises(SandboxError, match="is empty now"):
        drive(asked.ask(Fetch("x")), peer.io, *acts)
    assert peer.io.worker.emptied  # which the next outcome reports


def test_a_request_to_a_dead_worker_goes_to_the_next(peer: Peer) -> None:
    asked = questions(peer, 1)
    peer.die()
    peer.io.receive(ready(peer.io))
    acts = [*woken(peer, 1), peer.hear, lambda: peer.say(Value(b"1"))]
    assert drive(asked.ask(Fetch("x")), peer.io, *acts) == Value(b"1")


def test_the_file_of_a_request_is_passed_until_it_is_answered(peer: Peer) -> None:
    asked = questions(peer)
    heard: list[object] = []
    acts = [lambda: heard.extend(peer.hear()), lambda: peer.say(Value(b""))]
    drive(asked.ask(Assign("x", "str", b"", 9), peer.stdout), peer.io, *acts)
    assert heard == [Assign("x", "str", b"", 9)]
    peer.io.attach_memfd(HostCall(1, 0, MEMFD, b"[[],{}]"))
    (late,) = peer.hear()
    assert isinstance(late, HostReply) and not late.ok and peer.descriptors == 0


def test_an_exception_during_a_request_is_raised_after_its_answer(peer: Peer) -> None:
    asked = questions(peer)

    def fail() -> None:
        raise ArithmeticError

    steps = asked.ask(Fetch("x"), meanwhile=fail)
    with pytest.raises(ArithmeticError):
        drive(steps, peer.io, peer.hear, lambda: peer.say(Value(b"1")))
    assert not asked.is_waiting


def test_a_reply_without_a_waiting_caller_is_read(peer: Peer) -> None:
    asked = questions(peer)
    steps = asked.ask(Fetch("x"))
    next(steps)
    steps.close()  # the caller leaves
    assert asked.is_waiting
    peer.hear()
    drive(asked.discard_answer(), peer.io, lambda: peer.say(Value(b"1")))
    assert not asked.is_waiting


# ── Branches ──────────────────────────────────────────────────────────────────────────────────────


class Asked(NamespaceQueries):
    """Questions that are answered at once."""

    def __init__(self, peer: Peer, recovery: Recovery) -> None:
        super().__init__(peer.io, peer.cell, recovery, peer.completion, LIMITS)
        self.names: list[str] = []

    def ask(
        self, question: Any, memfd: int | None = None, *, meanwhile: Callable[[], None] = print
    ) -> Generator[float, Any, Any]:
        """Reply, after the actions of the test."""
        self.names.append(question.name)
        meanwhile()
        yield from ()
        return Failed("unknown", "")


def branches(peer: Peer, snapshots: int = 0) -> Branches:
    recovery = ran(peer, 1, snapshots=snapshots)
    return Branches(peer.io, Asked(peer, recovery), recovery, peer.completion)


def test_a_branch_has_its_own_connections(peer: Peer) -> None:
    room: list[str] = []
    acts = [lambda: peer.send({"branched": True, "number": 1})]
    made = drive(branches(peer).make(5, lambda: room.append("taken")), peer.io, *acts)
    try:
        assert peer.hear_orders() == ["branch"] and peer.orders[0]["seed"] == 5
        assert peer.descriptors == 5  # control, worker, stdout, stderr, the snapshot table
        assert room == ["taken"] and made.worker_pid == 0
        assert made.worker is not peer.links.worker and made.family is peer.links.family
    finally:
        made.close()


def test_a_failed_fork_makes_no_branch_and_leaves_nothing(peer: Peer) -> None:
    part = branches(peer)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError, match="could not be branched"):
        drive(
            part.make(None, lambda: None),
            peer.io,
            lambda: peer.send({"branched": False, "number": 1}),
        )
    # Threads of other tests open and close theirs.
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_without_capacity_or_snapshots_there_is_no_branch(peer: Peer) -> None:
    def refuse() -> None:
        raise SandboxError("no room")

    with pytest.raises(SandboxError, match="no room"):
        drive(branches(peer).make(None, refuse), peer.io)
    with pytest.raises(SandboxError, match="recovery='snapshot'"):
        drive(branches(peer, snapshots=-1).make(None, lambda: None), peer.io)
    assert peer.hear_orders() == []


def test_a_branch_begins_with_its_first_message(peer: Peer) -> None:
    recovery = ran(peer, 1)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setblocking(False)
    peer.io.use_worker(ours)
    with theirs:
        peer.io.init.request_worker({"op": "branch"}, theirs.fileno())
    part = Branches(peer.io, Asked(peer, recovery), recovery, peer.completion)
    lost = drive(part.begin(), peer.io, lambda: peer.start_worker(Restored(1, ("a thread",))))
    assert lost == ("a thread",)


def test_a_request_for_a_branch_first_takes_a_snapshot(peer: Peer) -> None:
    recovery = ran(peer, 1)
    asked = Asked(peer, recovery)
    part = Branches(peer.io, asked, recovery, peer.completion)
    made = drive(
        part.make(None, lambda: None),
        peer.io,
        lambda: peer.send({"branched": True, "number": 1}),
    )
    made.close()
    assert asked.names == [ASK_FOR_BRANCH]

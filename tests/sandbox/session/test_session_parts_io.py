"""I/O of a session by itself: sockets, notices of init, the first messages to workers."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.messages import (
    MEMFD,
    Assign,
    Configure,
    Fetch,
    HostCall,
    HostReply,
    Value,
)
from repl_sandbox.session.io import ShieldedOperations, WorkerConfiguration
from tests.sandbox.session.session_peer import Peer, ready

VARIABLE = Assign("x", "str", b"text")
CONFIGURE = Configure((), 7, None)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


# ── SessionIO ─────────────────────────────────────────────────────────────────────────────────────


def test_messages_and_other_descriptors_go_to_the_handler(peer: Peer) -> None:
    peer.io.send(Fetch("x"))
    assert peer.hear() == [Fetch("x")]
    peer.say(Value(b"1"))
    os.write(peer.stdout, b"text")
    peer.io.receive(ready(peer.io))
    assert peer.recorder.messages == [Value(b"1")]
    assert peer.recorder.woken == [peer.links.stdout]
    assert ready(peer.io) == []


def test_bytes_against_the_protocol_end_the_worker(peer: Peer) -> None:
    peer.worker.sendall(b"\xff" * 20)
    peer.io.receive(ready(peer.io))
    assert peer.hear_orders() == ["kill"]
    assert (
        peer.io.worker.breach == "protocol" and peer.io.worker.dead and peer.io.worker.kill_ordered
    )
    assert peer.recorder.messages == []


def test_a_message_that_the_handler_refuses_ends_the_worker(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: object) -> None:
        raise RemoteProtocolError("refused")

    monkeypatch.setattr(peer.recorder, "take", refuse)
    peer.say(HostCall(1, 1, "f", b"[[],{}]"))
    peer.io.receive(ready(peer.io))
    assert peer.io.worker.breach == "protocol"


def test_unread_messages_are_kept_and_sent_later(peer: Peer) -> None:
    large = Assign("x", "str", b"x" * (3 << 20))
    peer.io.send(large)
    assert peer.io.send_buffer.interest == select.POLLOUT  # so much unread: nothing is taken in
    heard: list[object] = []
    while not heard:
        heard += peer.hear()
        peer.io.receive(ready(peer.io))
    assert heard == [large]
    assert peer.io.send_buffer.interest == select.POLLIN and not peer.io.send_buffer


def test_end_of_file_on_the_socket_means_that_the_worker_ended(peer: Peer) -> None:
    peer.worker.close()
    peer.io.receive(ready(peer.io))
    assert peer.io.worker.dead and not peer.io.worker.init_is_gone
    peer.io.ignore_worker()
    assert peer.io.worker_fd not in peer.io.descriptors and ready(peer.io) == []


def test_a_descriptor_is_passed_once_and_only_while_it_is_offered(peer: Peer) -> None:
    peer.io.offer(peer.stdout)
    for number in (1, 2):
        peer.io.attach_memfd(HostCall(number, 0, MEMFD, b"[[],{}]"))
    first, second = peer.hear()
    assert first == HostReply(1, True, b"null") and peer.descriptors == 1
    assert isinstance(second, HostReply) and not second.ok and b"Cancelled" in second.data
    peer.io.offer(peer.stdout)
    peer.io.withdraw()
    peer.io.attach_memfd(HostCall(3, 0, MEMFD, b"[[],{}]"))
    (third,) = peer.hear()
    assert isinstance(third, HostReply) and not third.ok


def test_a_session_is_untouched_until_a_message_is_sent(peer: Peer) -> None:
    assert peer.io.untouched
    peer.io.send_configuration()  # which is nothing, as the configuration is plain; a cell follows
    assert not peer.io.untouched


# ── Configuration ─────────────────────────────────────────────────────────────────────────────────


def test_each_worker_is_configured_once_and_the_first_gets_the_variables() -> None:
    configuration = WorkerConfiguration(CONFIGURE, optional=False)
    assert configuration.add(VARIABLE)
    first = configuration.take_due()
    assert first is not None and first.variables == (VARIABLE,)
    configuration.was_sent()
    assert configuration.take_due() is None and not configuration.add(VARIABLE)
    configuration.emptied(keeps_variables=True)
    assert configuration.take_due() == first
    configuration.emptied(keeps_variables=False)
    assert configuration.take_due() == CONFIGURE
    configuration.restored()
    assert configuration.take_due() is None


def test_variables_that_no_worker_received_are_sent_to_the_next() -> None:
    configuration = WorkerConfiguration(CONFIGURE, optional=False)
    configuration.add(VARIABLE)
    configuration.take_due()  # and the worker is gone before it is sent
    configuration.emptied(keeps_variables=False)
    again = configuration.take_due()
    assert again is not None and again.variables == (VARIABLE,)


def test_a_default_configuration_is_not_sent_unless_there_are_variables() -> None:
    configuration = WorkerConfiguration(Configure((), None, None), optional=True)
    assert configuration.take_due() is None
    configuration = WorkerConfiguration(Configure((), None, None), optional=True)
    configuration.add(VARIABLE)
    assert configuration.take_due() is not None


@pytest.mark.parametrize(
    "variable",
    [
        Assign("x", "str", b"x" * (1 << 14)),
        Assign("x" * 4000, "str", b""),  # each byte of a name may be an escape of six
        Assign("x", "json", b"[" * 200 + b"]" * 200),
        Assign("x", "json", b"1" * 5000),
    ],
)
def test_large_or_refusable_values_are_sent_as_requests(variable: Assign) -> None:
    configuration = WorkerConfiguration(CONFIGURE, optional=False)
    assert not configuration.add(variable)
    assert configuration.message == CONFIGURE


# ── InitChannel and WorkerState ───────────────────────────────────────────────────────────────────


def test_an_interrupt_affects_the_running_cell_alone(peer: Peer) -> None:
    init = peer.io.init
    init.interrupt()
    assert peer.hear_orders() == [] and not init.interrupting
    peer.cell.number, peer.cell.running_since = 5, 1.0
    init.interrupt()
    assert peer.hear_orders() == ["interrupt"] and peer.orders[0]["cell"] == 5
    assert init.interrupting and init.unacknowledged == 1
    peer.send({"interrupted": 5})
    peer.send({"interrupted": 5})  # one more than was ordered, as of a worker that is gone
    init.read()
    init.read()
    init.read()  # where nothing has come
    assert init.unacknowledged == 0
    peer.cell.number = 6
    assert not init.interrupting


def test_a_limit_that_an_earlier_worker_has_passed_is_not_held_against_the_next(
    peer: Peer,
) -> None:
    init = peer.io.init
    seen = init.worker_number
    init.request_worker({"op": "start"}, peer.stdout)
    init.breach("memory", seen)  # that worker is being ended already
    init.note_new_worker()
    init.breach("memory", seen)
    assert peer.hear_orders() == ["start"] and peer.io.worker.breach is None
    init.breach("memory", init.worker_number)
    assert peer.hear_orders() == ["start", "kill"] and peer.io.worker.breach == "memory"


def test_the_death_of_an_earlier_worker_is_no_death_of_this_one(peer: Peer) -> None:
    worker = peer.io.worker
    worker.worker_number = 2
    peer.send({"died": 1, "status": 9, "cpu": 3.0})
    peer.io.init.read()
    assert not worker.dead and worker.cpu_of_ended == 3.0
    peer.send({"died": 2, "status": 9, "cpu": 4.0})
    peer.io.init.read()
    assert worker.dead and not worker.init_is_gone


def test_the_answer_to_a_cancelled_order_is_not_that_of_the_next(peer: Peer) -> None:
    init = peer.io.init
    init.request_branch(None, ())
    init.request_branch(3, ())
    peer.send({"branched": True, "number": 1})
    init.read()
    assert init.branched is None
    peer.send({"branched": False, "number": 2})
    init.read()
    assert init.branched is False
    peer.hear_orders()
    assert [order["seed"] for order in peer.orders] == [-1, 3]


def test_without_init_there_is_no_session(peer: Peer) -> None:
    peer.control.close()
    peer.io.init.send({"op": "kill"})
    assert not peer.io.worker.dead  # which is found as its notices are read
    peer.io.init.read()
    assert peer.io.worker.dead and peer.io.worker.init_is_gone


# ── Completion ────────────────────────────────────────────────────────────────────────────────────


def test_steps_of_a_cancelled_caller_complete() -> None:
    done: list[str] = []

    def steps():  # type: ignore[no-untyped-def]
        for name in ("one", "two"):
            yield 0.0
            done.append(name)
        return "result"

    completion = ShieldedOperations()
    caller = completion.of(steps())
    next(caller)
    caller.close()
    assert done == [] and completion.unfinished is not None
    abandoned = completion.of_abandoned()
    next(abandoned)
    with pytest.raises(StopIteration):
        abandoned.send([])
    assert done == ["one", "two"] and completion.unfinished is None

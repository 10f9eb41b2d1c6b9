"""The number of sessions, the queue for them, and the error for clients that come too late."""

import asyncio
import contextlib
import threading

import pytest

import repl_env
from repl_server.environments import AdmissionControl
from repl_server.tenants import RequestError, TenantQuota
from repl_server.websocket import ReceiveAhead
from tests.server.conftest import ask, peer, serving
from tests.server.server_internals import large_message_lock
from tests.server.toy_environments import Add, Adder, LonelyAdder, Sum
from tests.waiting import PATIENCE, eventually

TOYS = {"environment": Adder, "action": Add, "observation": Sum}


async def test_the_queue_for_sessions_is_first_in_first_out():
    admission = AdmissionControl(1, 2, 60.0)
    await admission.acquire()
    order = []

    async def enter(name):
        await admission.acquire()
        order.append(name)

    first, second = asyncio.create_task(enter("first")), asyncio.create_task(enter("second"))
    await asyncio.sleep(0)
    assert admission.waiting == 2
    with pytest.raises(RequestError, match="CAPACITY_REACHED") as caught:
        await admission.acquire()
    assert caught.value.details == {"active_sessions": 1, "max_sessions": 1}
    admission.release()
    await first
    admission.release()
    await second
    assert order == ["first", "second"] and admission.open == 1


async def test_the_queue_for_sessions_is_bounded():
    admission = AdmissionControl(1, 5, 0.01)
    await admission.acquire()
    with pytest.raises(RequestError, match="CAPACITY_REACHED"):
        await admission.acquire()
    assert (admission.open, admission.waiting) == (1, 0)
    admission.release()
    assert admission.free == 1


async def test_a_client_that_leaves_as_it_gets_a_session_passes_it_on():
    admission = AdmissionControl(1, 5, 60.0)
    await admission.acquire()
    leaver, stayer = (asyncio.create_task(admission.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    admission.release()
    leaver.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaver
    await stayer
    assert admission.open == 1


async def test_no_client_is_admitted_after_the_end():
    admission = AdmissionControl(1, 5, 60.0)
    await admission.acquire()
    waiting = asyncio.create_task(admission.acquire())
    await asyncio.sleep(0)
    admission.close(RequestError("DRAINING", "over"))
    with pytest.raises(RequestError, match="DRAINING"):
        await waiting
    admission.release()
    with pytest.raises(RequestError, match="DRAINING"):
        await admission.acquire()


def test_a_socket_waits_for_a_session():
    with serving({"max_sessions": 1, "wait_s": 60.0}, **TOYS) as server:
        with contextlib.ExitStack() as stack:
            with peer(server) as one:
                one.reset()
                late = stack.enter_context(peer(server))
                late.send("reset", {"start": 3})
                eventually(lambda: server.manager.admission.waiting == 1)
            assert late.take()["data"]["observation"]["total"] == 3


def test_a_full_server_refuses_clearly_and_recovers():
    with serving({"max_sessions": 1, "max_waiting": 1, "wait_s": 0.05}, **TOYS) as server:
        with peer(server) as one:
            one.reset()
            counts = {"ready": False, "sessions": 1, "free": 0, "waiting": 0}
            expected = {**counts, "version": repl_env.__version__}
            assert ask(server, "GET", "/ready")[::2] == (503, expected)
            with peer(server) as late:
                error = late.take()
                assert error["type"] == "error"
                assert error["data"]["code"] == "CAPACITY_REACHED"
                assert error["data"]["active_sessions"] == error["data"]["max_sessions"] == 1
                assert late.closed() == 1000
            with peer(server, named=True) as late:
                reply = late.ask("open", {}, id="o")
                assert (reply["id"], reply["data"]["code"]) == ("o", "CAPACITY_REACHED")
            status, _, body = ask(server, "POST", "/reset", {})
            assert (status, body["code"]) == (503, "CAPACITY_REACHED")
        eventually(lambda: ask(server, "GET", "/ready")[0] == 200)
        with peer(server) as one:
            assert one.reset()["done"] is False


def test_a_client_that_disconnects_leaves_the_queue():
    with serving({"max_sessions": 1, "wait_s": 60.0}, **TOYS) as server:
        with peer(server) as one:
            one.reset()
            with peer(server):
                eventually(lambda: server.manager.admission.waiting == 1)
            eventually(lambda: server.manager.admission.waiting == 0)
        eventually(lambda: server.manager.admission.open == 0)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("size", [0, 200_000])
def test_a_client_with_pending_requests_that_disconnects_leaves_the_queue(named, frames, size):
    """The server does not accept a waiting client's requests, however large they are."""
    with serving({"max_sessions": 1, "wait_s": 600.0}, **TOYS) as server:
        with peer(server) as one:
            one.reset()
            with peer(server, named=named) as late:
                if named:
                    late.send("open", {}, id="o")
                for _ in range(frames):
                    late.send("reset", {"note": "a" * size}, **({"id": "r"} if named else {}))
                eventually(lambda: server.manager.admission.waiting == 1)
            eventually(lambda: server.manager.admission.waiting == 0)
        eventually(lambda: server.manager.admission.open == 0)
        assert server.manager.inbound.buffered == 0


def test_requests_sent_while_queued_are_answered_in_order():
    with serving({"max_sessions": 1, "wait_s": 600.0}, **TOYS) as server:
        with contextlib.ExitStack() as stack:
            with peer(server) as one:
                one.reset()
                late = stack.enter_context(peer(server))
                late.send("reset", {"start": 3, "note": "a" * 100_000})
                for number in range(20):  # more than are read before their turn
                    late.send("step", {"number": number})
                eventually(lambda: server.manager.inbound.buffered > 100_000)
            totals = [late.take()["data"]["observation"]["total"] for _ in range(21)]
        assert totals == [3 + sum(range(number)) for number in range(21)]
        eventually(lambda: server.manager.inbound.buffered == 0)


def test_requests_after_those_sent_while_queued_are_answered_after_them():
    with serving({"max_sessions": 1, "wait_s": 600.0}, **TOYS) as server:
        reading = large_message_lock(server.manager.json_codec)

        def from_here(work):
            return asyncio.run_coroutine_threadsafe(work, server.loop).result()

        with contextlib.ExitStack() as stack:
            with peer(server) as one:
                one.reset()
                late = stack.enter_context(peer(server))
                eventually(lambda: server.manager.admission.waiting == 1)
                late.send("reset", {"start": 3, "note": "a" * 100_000})
                assert late.socket.ping().wait(PATIENCE)  # it is there, and kept
                eventually(lambda: server.manager.inbound.buffered > 100_000)
                from_here(reading.acquire())
            # It has a session by now, and waits for the large message to be parsed.
            eventually(lambda: server.manager.inbound.buffered == 0)
            late.send("state")
            assert ask(server, "GET", "/health")[0] == 200  # which comes after that
            server.loop.call_soon_threadsafe(reading.release)
            assert [late.take()["type"] for _ in range(2)] == ["observation", "state"]


async def test_the_request_that_exceeds_the_buffer_is_the_last_one_read_ahead():
    sent = [{"type": "websocket.receive", "text": "a" * 100}, {"type": "websocket.disconnect"}]
    coming = list(sent)

    async def receive():
        return coming.pop(0)

    ahead = ReceiveAhead(receive, lambda count: count <= 0)
    leaving = asyncio.create_task(ahead.disconnected())
    for _ in range(10):  # more than it takes to read both
        await asyncio.sleep(0)
    assert coming == sent[1:] and not leaving.done()
    leaving.cancel()
    assert [await ahead.next(), await ahead.next()] == sent


def test_an_environment_without_concurrency_is_alone():
    toys = {**TOYS, "environment": LonelyAdder}
    with serving({"max_sessions": 8, "max_waiting": 0}, **toys) as server:
        with peer(server) as one, peer(server) as other:
            one.reset()
            assert other.take()["data"]["code"] == "CAPACITY_REACHED"


def test_a_tenant_has_no_more_sessions_than_its_quota():
    with serving({"quota": TenantQuota(sessions=1, steps_per_second=1e-9)}, **TOYS) as server:
        with peer(server) as one:
            one.reset()
            with peer(server) as other:
                assert other.take()["data"]["code"] == "QUOTA_EXCEEDED"
                assert other.closed() == 1000
            one.ask("step", {"number": 1})
            assert one.refusal("step", {"number": 1}) == "RATE_LIMITED"
            assert one.ask("state")["data"]["total"] == 1
        eventually(lambda: not server.manager.sessions)
        with peer(server) as one:
            one.reset()


class Slow(Adder):
    """Its end is blocked until the gate opens."""

    def close(self):
        Adder.waiting.release()
        assert self.gate.wait(60)
        super().close()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("word", [False, True])
def test_a_client_that_ended_its_session_may_open_the_next(named, word):
    """Although its end takes a while, of which its client is not notified."""
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    toys, settings = (
        {**TOYS, "environment": Slow},
        {"quota": TenantQuota(sessions=1), "wait_s": 600.0},
    )
    with serving(settings, **toys) as server, contextlib.ExitStack() as stack:
        stack.callback(Adder.gate.set)
        with peer(server) as one:
            one.reset()
            if word:
                one.send("close")
                assert one.closed() == 1000
        assert Adder.waiting.acquire(timeout=60)
        late = stack.enter_context(peer(server, named=named))
        if named:
            late.send("open", {}, id="o")
        else:
            late.send("reset", {"start": 3})
        Adder.gate.set()
        assert late.take()["type"] == ("session" if named else "observation")


def test_the_wait_for_the_end_of_a_session_is_bounded():
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    toys, settings = (
        {**TOYS, "environment": Slow},
        {"quota": TenantQuota(sessions=1), "wait_s": 0.05},
    )
    with serving(settings, **toys) as server, contextlib.ExitStack() as stack:
        stack.callback(Adder.gate.set)
        with peer(server) as one:
            one.reset()
        assert Adder.waiting.acquire(timeout=60)
        with peer(server) as late:
            assert late.take()["data"]["code"] == "QUOTA_EXCEEDED"


def test_a_factory_that_fails_is_reported():
    def broken():
        raise RuntimeError("/secret/path")

    with serving(environment=broken, action=Add, observation=Sum) as server:
        with peer(server) as one:
            error = one.take()["data"]
            assert error["code"] == "FACTORY_ERROR" and "/secret" not in str(error)
            assert one.closed() == 1011
        assert server.manager.admission.open == 0

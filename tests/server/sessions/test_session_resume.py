"""A session outlives its socket: resumed by token, taken over, ended after the grace time."""

import threading

import pytest

from repl_server.tenants import Tenant
from tests.server.conftest import ask, peer, serving
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import eventually


@pytest.fixture(scope="module")
def adders():
    with serving({"grace_s": 300.0}, environment=Adder, action=Add, observation=Sum) as running:
        yield running


@pytest.fixture
def gate():
    """The event that steps with the note "wait" wait for."""
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    Adder.steps.clear()
    yield Adder.gate
    Adder.gate.set()


def drop(one) -> None:
    """Cut the connection without a close frame."""
    one.socket.close_socket()


def test_a_connection_dropped_during_a_step_gets_its_result_exactly_once(adders, gate):
    step = {"number": 5, "note": "wait"}
    with peer(adders, named=True) as one:
        token = one.open()["token"]
        one.reset(start=1)
        one.send("step", step, id="long")
        assert Adder.waiting.acquire(timeout=60)
        drop(one)
    with peer(adders, named=True) as one:
        facts = one.resume(token)
        assert facts["resumed"] is True and facts["running"] == "long"
        one.send("step", step, id="long")
        one.send("state", id="behind")
        gate.set()
        first = one.take()
        assert (first["id"], first["data"]["observation"]["total"]) == ("long", 6)
        assert one.take()["data"]["total"] == 6
    assert Adder.steps == [5]


def test_unlimited_times_are_null():
    endless = {"grace_s": float("inf"), "idle_s": float("inf")}
    with serving(endless, environment=Adder, action=Add, observation=Sum) as server:
        with peer(server, named=True) as one:
            facts = one.open()
            one.reset(start=1)
            drop(one)
        assert facts["grace_s"] is None and facts["limits"]["idle_s"] is None
        with peer(server, named=True) as one:
            assert one.resume(facts["token"])["resumed"] is True


def test_a_result_that_arrived_while_disconnected(adders, gate):
    step = {"number": 5, "note": "wait"}
    with peer(adders, named=True) as one:
        token = one.open()["token"]
        one.reset(start=1)
        one.send("step", step, id="long")
        assert Adder.waiting.acquire(timeout=60)
        drop(one)
    session = adders.manager.find(Tenant("address", "127.0.0.1"), token)
    eventually(lambda: session.sink is None)
    gate.set()
    eventually(lambda: not session.busy)
    with peer(adders, named=True) as one:
        assert one.resume(token)["running"] is None
        assert one.ask("step", step, id="long")["data"]["observation"]["total"] == 6
        assert one.ask("step", step, id="long")["data"]["observation"]["total"] == 6
    assert Adder.steps == [5]


def test_requests_not_begun_before_the_disconnect_are_not_run(adders, gate):
    with peer(adders, named=True) as one:
        token = one.open()["token"]
        one.reset(start=0)
        one.send("step", {"number": 1, "note": "wait"}, id="1")
        one.send("step", {"number": 2}, id="2")
        assert Adder.waiting.acquire(timeout=60)
        session = adders.manager.find(Tenant("address", "127.0.0.1"), token)
        drop(one)
    eventually(lambda: session.sink is None)
    gate.set()
    with peer(adders, named=True) as one:
        one.resume(token)
        assert one.ask("step", {"number": 2}, id="2")["data"]["observation"]["total"] == 3
    assert Adder.steps == [1, 2]


def test_resuming_takes_a_session_away_from_a_socket_that_holds_it(adders, gate):
    with peer(adders, named=True) as one, peer(adders, named=True) as other:
        token = one.open()["token"]
        one.reset(start=1)
        one.send("step", {"number": 2, "note": "wait"}, id="long")
        assert Adder.waiting.acquire(timeout=60)
        assert other.resume(token)["running"] == "long"
        assert one.closed() == 4001
        other.send("step", {"number": 2, "note": "wait"}, id="long")
        gate.set()
        assert other.take()["data"]["observation"]["total"] == 3
        assert other.ask("step", {"number": 1})["data"]["observation"]["total"] == 4


def test_a_resumed_session_can_be_taken_over_by_another_socket(adders):
    with peer(adders, named=True) as one:
        token = one.open()["token"]
    with peer(adders, named=True) as one, peer(adders, named=True) as other:
        one.resume(token)
        one.reset(start=1)
        other.resume(token)
        assert other.ask("state")["data"]["total"] == 1


def test_a_closed_session_cannot_be_resumed(adders):
    with peer(adders, named=True) as one:
        token = one.open()["token"]
        one.send("close", id="1")
        assert one.closed() == 1000
    with peer(adders, named=True) as one:
        assert one.refusal("resume", {"token": token}) == "UNKNOWN_SESSION"
        assert one.closed() == 4404


@pytest.mark.parametrize("token", ["", "x", "é", "x" * 200, "../../etc"])
def test_unknown_tokens(adders, token):
    with peer(adders, named=True) as one:
        assert one.refusal("resume", {"token": token}) == "UNKNOWN_SESSION"
        assert one.closed() == 4404


def test_a_token_is_useless_to_another_tenant(adders):
    with peer(adders, named=True) as one:
        token = one.open()["token"]
        session = adders.manager.find(Tenant("address", "127.0.0.1"), token)
        session.tenant = Tenant("key", "somebody")
        with peer(adders, named=True) as other:
            assert other.refusal("resume", {"token": token}) == "UNKNOWN_SESSION"
        one.reset()
        assert one.ask("step", {"number": 1})["type"] == "observation"


def test_the_id_of_a_session_is_not_its_token(adders):
    with peer(adders, named=True) as one:
        facts = one.open()
        with peer(adders, named=True) as other:
            assert other.refusal("resume", {"token": facts["session_id"]}) == "UNKNOWN_SESSION"


def test_a_session_that_no_client_resumes_ends():
    with serving({"grace_s": 0.05}, environment=Adder, action=Add, observation=Sum) as server:
        with peer(server, named=True) as one:
            token = one.open()["token"]
            one.reset()
            assert len(server.manager.sessions) == 1
            drop(one)
        eventually(lambda: not server.manager.sessions)
        assert ask(server, "GET", "/ready")[2]["sessions"] == 0
        with peer(server, named=True) as one:
            assert one.refusal("resume", {"token": token}) == "UNKNOWN_SESSION"


def test_an_openenv_socket_does_not_affect_the_end_of_other_sessions():
    """A resumable session ends after its grace time; one over HTTP after the idle timeout."""
    settings = {"idle_s": 600.0, "grace_s": 0.02}
    with serving(settings, environment=Adder, action=Add, observation=Sum) as server:
        token = ask(server, "POST", "/reset", {}, X_Session_Id="new")[1]["X-Session-Id"]
        (stays,) = server.manager.sessions
        with peer(server, named=True) as one:
            resumed = one.open()["token"]
            for name in (resumed, token):
                with peer(server, path=f"/ws?session_id={name}") as beside:
                    beside.reset()
            assert one.closed() == 4001
        eventually(lambda: server.manager.sessions == [stays])
        looks = server.manager.sweeper.sweeps
        eventually(lambda: server.manager.sweeper.sweeps > looks + 20)
        assert server.manager.sessions == [stays]


def test_a_running_step_does_not_extend_the_grace_time():
    with serving({"grace_s": 0.05}) as server:
        with peer(server, named=True) as one:
            one.open()
            one.reset()
            (session,) = server.manager.sessions
            one.send("step", {"code": "import time; time.sleep(600)"}, id="1", timeout_s=900)
            eventually(lambda: session.running == "1")
            drop(one)
        eventually(lambda: not server.manager.sessions)


def test_an_idle_session_ends():
    settings = {"idle_s": 600.0, "grace_s": 0.02}  # the latter has the host look often
    with serving(settings, environment=Adder, action=Add, observation=Sum) as server:
        with peer(server) as plain, peer(server, named=True) as named:
            plain.reset()
            named.open()
            looks = server.manager.sweeper.sweeps
            eventually(lambda: server.manager.sweeper.sweeps > looks + 5)
            assert len(server.manager.sessions) == 2
            for session in server.manager.sessions:
                session.used_at -= 3600.0
            assert plain.closed() == 4408
            assert named.closed() == 4408
        eventually(lambda: not server.manager.sessions)


def test_a_long_step_is_not_idle(gate):
    settings = {"idle_s": 600.0, "grace_s": 0.02}  # the latter has the host look often
    with serving(settings, environment=Adder, action=Add, observation=Sum) as server:
        with peer(server, named=True) as one:
            one.open()
            one.reset()
            one.send("step", {"number": 1, "note": "wait"}, id="1")
            assert Adder.waiting.acquire(timeout=60)
            (session,) = server.manager.sessions
            session.used_at -= 3600.0
            looks = server.manager.sweeper.sweeps
            eventually(lambda: server.manager.sweeper.sweeps > looks + 5)
            gate.set()
            assert one.take()["data"]["observation"]["total"] == 1

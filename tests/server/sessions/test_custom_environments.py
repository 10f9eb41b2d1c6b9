"""Environments of others: on the loop, in threads, in one thread of their own; of the same base."""

import asyncio
import contextlib
import json
import os
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from repl_env import REPLEnvironment
from repl_env.models import State
from repl_env.rubrics import ExactMatchRubric, Rubric
from repl_sandbox import Limits, Sandbox
from repl_server.app import create_app
from tests.server.conftest import ask, peer, serving
from tests.server.toy_environments import Add, Adder, AsyncAdder, BoundAdder, LonelyAdder, Sum
from tests.waiting import PATIENCE, eventually

MODELS = {"action": Add, "observation": Sum}


@pytest.mark.parametrize("kind", [Adder, AsyncAdder, BoundAdder, lambda: Adder()])
def test_each_kind_of_environment_is_served_and_closed(kind):
    Adder.closed.clear()
    with serving(environment=kind, **MODELS) as server:
        with peer(server) as one:
            one.reset(start=1)
            assert one.ask("step", {"number": 2})["data"]["observation"]["total"] == 3
            assert one.ask("state")["data"]["total"] == 3
        eventually(lambda: Adder.closed)
    assert len(Adder.closed) == 1


@pytest.mark.parametrize("kind", [Adder, BoundAdder])
def test_an_environment_without_a_client_is_closed(kind):
    begun, made = threading.Event(), threading.Event()

    class Slow(kind):  # type: ignore[valid-type,misc]
        def __init__(self) -> None:
            begun.set()
            assert made.wait(60)
            super().__init__()

    Adder.closed.clear()
    with serving(environment=Slow, **MODELS) as server:
        with peer(server):
            assert begun.wait(60)
        eventually(lambda: server.connections == 0)
        assert server.manager.admission.open == 1  # a thread cannot be ended: it is waited for
        made.set()
        eventually(lambda: server.manager.admission.open == 0)
        assert len(Adder.closed) == 1


class Keeper(Adder):
    """An environment whose reset returns its arguments."""

    def reset(self, **arguments):
        super().reset()
        return Sum(text=repr(sorted(arguments.items())))


def test_arguments_are_passed_under_any_name():
    """Arguments named like methods of the adapter reach the environment."""
    given = {"copy": 1, "given": "a", "model_config": [2], "model_extra": {}, "start": 0}
    with serving(environment=Keeper, **MODELS) as server, peer(server) as one:
        text = one.reset(**given)["observation"]["text"]
    assert text == repr(sorted(given.items()))


class Awaited(Adder):
    """Whose plain methods, which are not called, know other arguments than the awaited ones."""

    def reset(self, **arguments):
        raise AssertionError

    def step(self, action):
        raise AssertionError

    async def reset_async(self, start=0):
        return Sum(total=start)

    async def step_async(self, action, timeout_s=None):
        return Sum(total=int(timeout_s or 0))


def test_arguments_are_those_that_the_method_knows_which_is_called():
    with serving(environment=Awaited, **MODELS) as server, peer(server, named=True) as one:
        one.open()
        begun = one.reset(start=5, unknown=1)
        stepped = one.ask("step", {"number": 1}, timeout_s=7)["data"]

    assert (begun["observation"]["total"], stepped["observation"]["total"]) == (5, 7)


class Odd(Adder):
    """Says what JSON has nothing for."""

    def step(self, action, **kwargs):
        return Sum(metadata={"loss": float("nan"), "bound": float("inf")})

    @property
    def state(self):
        return State(episode_id="a\ud800b", loss=float("nan"))  # type: ignore[call-arg]


def test_values_without_a_json_form_become_null_or_a_question_mark():
    def strictly(name):
        raise AssertionError(f"{name} is no JSON")

    with serving(environment=Odd, **MODELS) as server, peer(server) as one:
        one.reset()
        one.send("step", {"number": 1})
        stepped = json.loads(one.socket.recv(timeout=PATIENCE), parse_constant=strictly)["data"]
        state = one.ask("state")["data"]

    assert stepped["metadata"] == stepped["observation"]["metadata"]
    assert stepped["metadata"] == {"loss": None, "bound": None}
    assert (state["episode_id"], state["loss"]) == ("a?b", None)


def test_blocking_environments_do_not_block_the_server():
    """More than asyncio has threads of its own."""
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    with serving(environment=Adder, **MODELS) as server, contextlib.ExitStack() as stack:
        several = [stack.enter_context(peer(server)) for _ in range((os.cpu_count() or 1) + 5)]
        for one in several:
            one.reset()
            one.send("step", {"number": 1, "note": "wait"})
            assert Adder.waiting.acquire(timeout=60)
        with peer(server) as other:
            other.reset()
            assert other.ask("step", {"number": 2})["data"]["observation"]["total"] == 2
        Adder.gate.set()
        assert [one.take()["data"]["observation"]["total"] for one in several] == [1] * len(several)


def test_a_blocking_state_does_not_block_the_server():
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)

    class Asking(Adder):
        @property
        def state(self):
            Adder.waiting.release()
            assert self.gate.wait(60)
            return super().state

    with serving(environment=Asking, **MODELS) as server, peer(server) as one, peer(server) as two:
        one.reset(start=1)
        one.send("state")
        assert Adder.waiting.acquire(timeout=60)
        assert two.reset(start=2)["observation"]["total"] == 2
        Adder.gate.set()
        assert one.take()["data"]["total"] == 1


class Endless(AsyncAdder):
    async def step_async(self, action, timeout_s=None):
        while action.note == "wait":
            Adder.waiting.release()
            await asyncio.Event().wait()
        return await super().step_async(action)


def test_a_step_on_the_event_loop_is_cancelled():
    Adder.waiting = threading.Semaphore(0)
    quick = {"limits": Limits(memory="512MiB", grace=0.1)}
    with serving(quick, environment=Endless, **MODELS) as server, peer(server, named=True) as one:
        one.open()
        one.reset(start=1)
        one.send("step", {"number": 1, "note": "wait"}, id="endless")
        assert Adder.waiting.acquire(timeout=60)
        one.send("cancel", {"request": "endless"}, id="c")
        replies = one.replies("endless", "c")
        after = one.ask("step", {"number": 2})["data"]["observation"]

    assert replies["c"]["data"] == {"running": True}
    assert replies["endless"]["data"]["code"] == "EXECUTION_ERROR"
    assert after["total"] == 3


class Slow(AsyncAdder):
    """Takes its time to end a step that is given up; `heeds`: it ends."""

    heeds = True

    async def step_async(self, action, timeout_s=None):
        for _ in range(2):
            try:
                Adder.waiting.release()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        if self.heeds:
            raise asyncio.CancelledError
        return Sum()


class Heedless(Slow):
    heeds = False


@pytest.mark.parametrize("kind", [Slow, Heedless])
def test_a_session_that_ends_during_a_cancelled_step_leaves_nothing(kind):
    Adder.waiting = threading.Semaphore(0)
    quick = {"limits": Limits(memory="512MiB", grace=0.1)}
    with serving(quick, environment=kind, **MODELS) as server:
        with peer(server, named=True) as one:
            one.open()
            one.reset()
            one.send("step", {"number": 1}, id="endless")
            assert Adder.waiting.acquire(timeout=60)
            one.send("cancel", {"request": "endless"}, id="c")
            assert Adder.waiting.acquire(timeout=60)  # it was given up, and has not ended
            one.send("close", id="end")
        eventually(lambda: not server.manager.sessions)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_exceptions_that_end_a_loop_or_task_are_errors_for_one_client(error):
    class Rude(AsyncAdder):
        async def step_async(self, action, timeout_s=None):
            if action.note == "raise":
                raise error
            return await super().step_async(action)

    with serving(environment=Rude, **MODELS) as server, peer(server) as one, peer(server) as other:
        one.reset(start=1)
        other.reset(start=2)
        assert one.refusal("step", {"number": 1, "note": "raise"}) == "EXECUTION_ERROR"
        after = [each.ask("step", {"number": 1})["data"]["observation"] for each in (one, other)]

    assert [each["total"] for each in after] == [2, 3]


def test_a_cancellation_inside_a_rubric_is_an_error_for_its_client():
    class Cancelled(Rubric):
        async def forward(self, action, observation):
            raise asyncio.CancelledError

    with Sandbox(limits=Limits(memory="512MiB"), recovery="restart") as sandbox:

        def environment():
            return REPLEnvironment(sandbox=sandbox, rubric=Cancelled())

        with serving(environment=environment) as server, peer(server) as one:
            one.reset()
            assert one.refusal("step", {"code": "FINAL(1)"}) == "EXECUTION_ERROR"
            one.reset()


def test_a_factory_that_raises_system_exit_does_not_end_the_server():
    def environment():
        raise SystemExit(3)

    with serving(environment=environment, **MODELS) as server:
        assert ask(server, "GET", "/metadata")[2]["code"] == "FACTORY_ERROR"
        assert ask(server, "GET", "/health")[0] == 200


class Costly(Adder):
    told = (None, "2", -1, float("nan"))

    def step(self, action, **kwargs):
        return Sum(metadata={"usage": {"cpu_seconds": self.told[action.number]}})


def test_the_usage_that_an_environment_reports_is_passed_through():
    with serving(environment=Costly, **MODELS) as server, peer(server) as one:
        one.reset()
        types = [one.ask("step", {"number": number})["type"] for number in range(4)]

    assert types == ["observation"] * 4


def test_an_environment_whose_data_are_at_their_end_is_an_error_for_its_client():
    class Ended(Adder):
        def step(self, action, **kwargs):
            return next(iter([]))

    with serving(environment=Ended, **MODELS) as server, peer(server) as one:
        one.reset()
        assert one.ask("step", {"number": 1})["data"]["code"] == "EXECUTION_ERROR"


@pytest.mark.parametrize("kind", [Adder, BoundAdder])
def test_a_socket_closed_during_a_step_leaves_nothing(kind):
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    Adder.closed.clear()
    with serving(environment=kind, **MODELS) as server:
        with peer(server) as one:
            one.reset()
            one.send("step", {"number": 1, "note": "wait"})
            assert Adder.waiting.acquire(timeout=60)
        eventually(lambda: all(session.closing for session in server.manager.sessions))
        assert not Adder.closed  # a thread cannot be ended: it is waited for
        Adder.gate.set()
        eventually(lambda: not server.manager.sessions)
        assert len(Adder.closed) == 1


def test_environments_of_this_package_have_all_features():
    with Sandbox(limits=Limits(memory="512MiB"), recovery="restart") as sandbox:

        def environment():
            return REPLEnvironment(sandbox=sandbox, rubric=ExactMatchRubric())

        with serving(environment=environment) as server:
            with peer(server, named=True) as one:
                one.open()
                one.reset(expected_answer="1")
                one.send("step", {"code": "print('on', flush=True)"}, id="s", stream=True)
                one.until("on\n")
                one.replies("s")
                assert "context" in one.ask("variables")["data"]["names"]
                assert one.ask("step", {"code": "FINAL(1)"})["data"]["reward"] == 1.0
                forbidden = {"hf_token": "hf_x"}
                assert one.refusal("reset", forbidden) == "FORBIDDEN"
            eventually(lambda: not [each for each in server.manager.sessions if each.sink])


@pytest.mark.parametrize("make", [lambda kind: lambda: kind(), lambda kind: partial(kind)])
def test_a_factory_function_is_asked_for_its_concurrency(make):
    """A class declares its concurrency; a function has no attributes."""
    with serving({"max_sessions": 8, "max_waiting": 0}, environment=make(Adder), **MODELS) as many:
        with peer(many) as one, peer(many) as other:
            assert one.reset(start=1)["observation"]["total"] == 1
            assert other.reset(start=2)["observation"]["total"] == 2
        assert many.manager.admission.max_open == 8
    with serving(
        {"max_sessions": 8, "wait_s": 0.05}, environment=make(LonelyAdder), **MODELS
    ) as lone:
        with peer(lone) as one, peer(lone) as other:
            one.reset()
            assert other.take()["data"]["code"] == "CAPACITY_REACHED"
            assert ask(lone, "GET", "/metadata")[2]["code"] == "CAPACITY_REACHED"
        eventually(lambda: lone.manager.admission.open == 0)
        assert ask(lone, "GET", "/metadata")[0] == 200


def test_clients_wait_until_the_concurrency_is_known():
    """A short queue refuses none of the clients, because there is capacity for all of them."""
    begun, made = threading.Event(), threading.Event()

    def environment():
        begun.set()
        assert made.wait(60)
        return Adder()

    few = {"max_sessions": 4, "max_waiting": 0}
    with serving(few, environment=environment, **MODELS) as server, contextlib.ExitStack() as stack:
        several = [stack.enter_context(peer(server)) for _ in range(4)]
        assert begun.wait(60)
        eventually(lambda: server.manager.admission.waiting == 3)
        made.set()
        assert [one.reset(start=1)["observation"]["total"] for one in several] == [1] * 4
        with peer(server) as fifth:
            assert fifth.take()["data"]["code"] == "CAPACITY_REACHED"


def test_environments_of_a_factory_may_be_bound_to_their_thread():
    with serving(environment=lambda: BoundAdder(), **MODELS) as server, peer(server) as one:
        one.reset()
        assert one.ask("step", {"number": 2})["data"]["observation"]["total"] == 2
        Adder.closed.clear()
        one.send("close")
        eventually(lambda: Adder.closed)


def test_a_failing_factory_is_reported_to_every_request_that_needs_it(caplog):
    broken = [True]

    def environment():
        if broken:
            raise RuntimeError("/secret/path")
        return Adder()

    with serving(environment=environment, **MODELS) as server:
        status, _, told = ask(server, "GET", "/metadata")
        assert (status, told["code"]) == (503, "FACTORY_ERROR") and "/secret" not in str(told)
        assert told["id"] in caplog.text
        broken.clear()
        assert ask(server, "GET", "/metadata")[2]["name"] == "Adder"


def test_metadata_come_from_one_environment_that_is_then_closed():
    class Mute(Adder):
        def get_metadata(self):
            raise LookupError("no readme in /srv/secret")

    Adder.closed.clear()
    with serving(environment=Mute, **MODELS) as server:
        status, _, told = ask(server, "GET", "/metadata")
        assert (status, told["code"]) == (409, "EXECUTION_ERROR")
        assert "LookupError" in told["message"] and "/srv" not in told["message"]
    assert len(Adder.closed) == 1


def test_a_factory_that_returns_no_environment_is_at_fault(caplog):
    """A `return` that was forgotten, for example."""
    with serving(environment=lambda: None, **MODELS) as server:
        with peer(server) as one:
            assert one.take()["data"]["code"] == "FACTORY_ERROR"
        assert ask(server, "GET", "/metadata")[2]["code"] == "FACTORY_ERROR"
        eventually(lambda: server.manager.admission.open == 0)
    assert (
        "the factory returned a NoneType, which is not an environment: it lacks reset"
        in caplog.text
    )


def test_the_environment_of_the_page_is_served_as_the_page_says():
    page = (Path(__file__).parents[3] / "docs" / "openenv.md").read_text(encoding="utf-8")
    section = page.partition("## An environment of your own")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    found = {"__name__": "page"}
    exec(code, found)
    models = {"action": found["Add"], "observation": found["Sum"]}
    settings = replace(found["app"].state.manager.settings, port=0)  # type: ignore[attr-defined]
    with serving(settings, environment=found["Adder"], **models) as server:
        with peer(server) as one:
            one.reset(start=2, unknown=1)
            told = one.ask("step", {"number": 3})["data"]
    assert (told["observation"]["total"], told["reward"]) == (5, 1.0)
    assert found["app"].state.manager.admission.max_open == 8  # type: ignore[attr-defined]


async def make_adder():
    return Adder()


def test_invalid_factories_are_refused():
    with pytest.raises(TypeError, match="asynchronous"):
        create_app(environment=make_adder)
    with pytest.raises(TypeError, match="Adder"):
        create_app(environment=Adder())

"""Several threads or tasks use one environment: one is served, the others get an error with a
remedy.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env import (
    AsyncLocalREPLEnv,
    EpisodeAborted,
    NotReset,
    REPLAction,
    REPLEnv,
    REPLEnvironment,
    REPLVectorEnv,
    SessionBusy,
    StepResult,
)
from repl_env.server.python_executor import PythonExecutor
from tests.server.conftest import serving
from tests.waiting import PATIENCE

THREADS = 4
WHAT_TO_DO = "an environment of its own"


def at_once(call, threads=THREADS):
    """Return the results and errors of `call(number)` in threads that begin together."""
    barrier = threading.Barrier(threads)
    ends: list = [None] * threads

    def run(number):
        barrier.wait(PATIENCE)
        try:
            ends[number] = call(number)
        except Exception as error:  # noqa: BLE001 (told by the test)
            ends[number] = error

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(PATIENCE)
    return ends


class Held:
    """A tool by which a cell waits until the test releases it."""

    def __init__(self):
        self.running, self.go_on = threading.Event(), threading.Event()

    def __call__(self):
        self.running.set()
        assert self.go_on.wait(PATIENCE)

    def while_held(self, step, others):
        """Return the result of `step`, during which four threads called `others`."""
        result = []
        thread = threading.Thread(target=lambda: result.append(ended(step)))
        thread.start()
        assert self.running.wait(PATIENCE)
        try:
            beside = at_once(others)
        finally:
            self.go_on.set()
            thread.join(PATIENCE)
        return result[0], beside


def ended(call):
    try:
        return call()
    except Exception as error:  # noqa: BLE001 (told by the test)
        return error


@pytest.fixture
def held():
    return Held()


def test_threads_that_step_at_once_take_one_step_each_or_are_refused(env):
    env.reset(max_iterations=1000)
    taken = 0
    for _ in range(20):
        ends = at_once(lambda number: env.execute(f"x = {number}"))
        taken += sum(isinstance(end, StepResult) for end in ends)
        for end in ends:
            assert isinstance(end, StepResult) or WHAT_TO_DO in str(end), end
    assert env.state().iteration == taken > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.execute("1"),
        lambda env: env.submit_final_answer(1),
        lambda env: env.follow_up(task_prompt="more"),
        lambda env: env.draft(),
        lambda env: env.branch(),
    ],
)
def test_four_threads_during_a_step_are_refused(make, held, call):
    env = make(tools={"hold": held})
    env.reset()
    step, beside = held.while_held(lambda: env.execute("hold()\n7"), lambda _: call(env))
    assert all(isinstance(each, SessionBusy) for each in beside), beside
    assert step.observation.result.value == "7"
    assert env.state().iteration == 1


@pytest.mark.parametrize("call", [lambda env: env.close(), lambda env: env.reset()])
def test_ending_the_episode_during_a_step_ends_the_step(make, held, call):
    env = make(tools={"hold": held})
    env.reset()

    def once(number):
        if number == 0:
            call(env)
            held.go_on.set()

    step, _ = held.while_held(lambda: env.execute("hold()"), once)
    assert isinstance(step, EpisodeAborted)
    assert step.kind == "cancelled" and "closed or reset" in str(step)
    env.reset()
    assert env.execute("7").observation.result.value == "7"


def test_no_step_is_taken_after_the_one_that_ends_the_episode(env):
    for _ in range(10):
        env.reset(max_iterations=1)
        ends = at_once(lambda _: env.execute("1"))
        assert sum(isinstance(end, StepResult) for end in ends) == 1, ends
        assert env.state().iteration == 1


def test_of_concurrent_resets_one_begins_and_no_session_leaks(sandbox, env):
    for _ in range(5):
        ends = at_once(lambda _: env.reset())
        begun = [end for end in ends if isinstance(end, StepResult)]
        assert begun, ends
        refused = [end for end in ends if end not in begun]
        assert all(WHAT_TO_DO in str(end) for end in refused), refused
        assert env.execute("1").observation.result.success
    before = sandbox.statistics().open
    env.close()
    assert sandbox.statistics().open == before - 1


def test_environment_steps_of_threads(sandbox, held):
    env = REPLEnvironment(sandbox=sandbox, tools={"hold": held})
    env.reset()
    step, beside = held.while_held(
        lambda: env.step(REPLAction(code="hold()")), lambda _: env.step(REPLAction(code="1"))
    )
    env.close()
    assert step.iteration == 1
    assert all(WHAT_TO_DO in str(each) for each in beside), beside


def test_vector_steps_of_threads(sandbox, held):
    with REPLVectorEnv(2, sandbox=sandbox, tools={"hold": held}) as envs:
        envs.reset()
        step, beside = held.while_held(
            lambda: envs.step(["hold()", None]), lambda _: envs.step(["1", "2"])
        )
        assert [result and result.observation.iteration for result in step] == [1, None]
        assert all(isinstance(each, SessionBusy) for each in beside), beside
        assert all("at another reset or step" in str(each) for each in beside)


def test_executors_of_threads_open_one_session(sandbox):
    before = sandbox.statistics()
    with PythonExecutor(sandbox=sandbox) as executor:
        ends = at_once(lambda number: executor.execute(f"x{number} = 1"))
        assert all(isinstance(end, dict) or "one session per thread" in str(end) for end in ends), (
            ends
        )
        ran = sum(isinstance(end, dict) for end in ends)
        names = [name for name in executor.list_variables() if name.startswith("x")]
        assert len(names) == ran > 0
    assert sandbox.statistics().open == before.open


async def test_tasks_at_once(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        steps = (env.execute("1") for _ in range(THREADS))
        ends = await asyncio.gather(*steps, return_exceptions=True)
        taken = [end for end in ends if isinstance(end, StepResult)]
        assert len(taken) == (await env.state()).iteration == 1
        assert all(WHAT_TO_DO in str(end) for end in ends if end not in taken)


def test_a_remote_client_queues_threads():
    with serving() as server, REPLEnv(server.url).sync() as env:
        env.reset()
        ends = at_once(lambda number: env.execute(f"x{number} = 1\nimport time; time.sleep(0.01)"))
        assert sorted(end.observation.iteration for end in ends) == [1, 2, 3, 4]
        assert {f"x{number}" for number in range(THREADS)} <= set(env.list_variables())


def test_a_remote_client_closed_during_a_step_raises():
    begun = threading.Event()
    with serving() as server, REPLEnv(server.url).sync() as env:
        env.reset()

        def call(number):
            if number == 0:
                code = "print('here', flush=True)\nwhile True: pass"
                return env.execute(code, on_output=lambda *_: begun.set())
            assert begun.wait(PATIENCE)
            return env.close()

        step, closed = at_once(call, threads=2)
        assert closed is None
        assert isinstance(step, Exception), step
        assert "closed" in str(step)
        with pytest.raises(NotReset):
            env.execute("1")

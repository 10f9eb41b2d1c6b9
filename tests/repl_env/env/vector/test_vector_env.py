"""`REPLVectorEnv`: many environments, reset and stepped as one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest

from repl_env import NotReset, REPLAction, REPLVectorEnv
from repl_env.episode.effects import Effects, run_batch
from repl_env.rubrics import Rubric
from repl_sandbox import Sandbox, Session
from repl_sandbox.errors import SessionBusy
from repl_sandbox.session.batch import SessionBatch
from tests.internals import session_links
from tests.limits import GROWING
from tests.repl_env.env.vector.vector_results import LARGE, shown
from tests.waiting import LONG


def test_each_environment_has_its_own_episode(envs: REPLVectorEnv) -> None:
    results = envs.reset(context="abc", task_prompt="t", expected_answer="3")
    assert [each.observation.context_length for each in results] == [3] * 4
    envs.step([f"x = {number}" for number in range(4)])
    assert shown(envs.step(["print(x, context)"] * 4)) == [f"{n} abc" for n in range(4)]
    stepped = envs.step(["FINAL(3)", "FINAL(4)", "FINAL(3)", "pass"])
    assert [each and each.reward for each in stepped] == [1.0, 0.0, 1.0, 0.0]
    assert [each and each.done for each in stepped] == [True, True, True, False]
    assert len({env.state().episode_id for env in envs.environments}) == 4


def test_requests_override_arguments_for_all(envs: REPLVectorEnv) -> None:
    requests = [{"context": "own"}, None, {"contexts": {"a": "x"}, "context": None}, {"seed": 1}]
    envs.reset(requests, context="all", task_prompt="t")
    code = "print([globals().get(name) for name in ('context', 'a')])"
    assert shown(envs.step([code] * 4)) == [
        "['own', None]",
        "['all', None]",
        "[None, 'x']",
        "['all', None]",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"requests": [None]}, ValueError, "requests: 1 for 4"),
        ({"requests": 4}, TypeError, "requests must be a list"),
        (
            {"requests": [None, None, "context", None]},
            TypeError,
            r"requests\[2\] must be a mapping",
        ),
        ({"colour": 1}, TypeError, "environment 0: reset takes no colour"),
        ({"context": 7}, TypeError, "context must be"),
        ({"contexts": ["a"]}, TypeError, "contexts must be a dict"),
        ({"context": [object()] * 9}, TypeError, "context must hold JSON"),
        ({"max_iterations": 0}, ValueError, "max_iterations"),
    ],
)
def test_a_bad_argument_is_named(
    envs: REPLVectorEnv, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        envs.reset(**arguments)
    assert len(envs.reset(context="fine")) == 4


def test_an_argument_of_one_environment_is_its_error_with_its_number(envs: REPLVectorEnv) -> None:
    with pytest.raises(ValueError, match="max_iterations") as caught:
        envs.reset([None, None, {"max_iterations": -1}, None])
    assert caught.value.__notes__ == ["environment 2 of 4"]


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


def test_an_action_of_none_is_no_step(envs: REPLVectorEnv) -> None:
    envs.reset()
    assert shown(envs.step(["print(1)", None, REPLAction(code="print(2)"), None])) == [
        "1",
        None,
        "2",
        None,
    ]
    assert [env.state().iteration for env in envs.environments] == [1, 0, 1, 0]
    assert envs.step([None] * 4) == [None] * 4


def test_environments_step_at_the_same_time(sandbox: Sandbox) -> None:
    """Each waits until all have come to the same point, which one after the other none would."""
    meeting = threading.Barrier(4)
    with REPLVectorEnv(4, sandbox=sandbox, tools={"meet": lambda: meeting.wait(60)}) as envs:
        envs.reset()
        assert sorted(map(str, shown(envs.step(["print(meet())"] * 4)))) == ["0", "1", "2", "3"]


def test_an_environment_that_fails_does_not_harm_the_others(envs: REPLVectorEnv) -> None:
    envs.reset()
    codes = ["1/0", "while True: pass", "import os\nos._exit(1)", "print('fine')"]
    for limit in GROWING:
        results = envs.step(codes, timeout_s=limit)
        kinds = [each and each.metadata and each.metadata["error_kind"] for each in results]
        if kinds.count("timeout") == 1:
            break
    assert kinds == ["exception", "timeout", "crash", None]
    assert shown(results)[3] == "fine"
    assert shown(envs.step(["print(1)"] * 4)) == ["1"] * 4


def test_a_lost_session_ends_its_episode_alone_until_the_next_reset(envs: REPLVectorEnv) -> None:
    envs.reset(context="abc")
    links = session_links(envs.environments[1].session)
    worker = psutil.Process(links.worker_pid)
    os.kill(links.pid, 9)
    assert psutil.wait_procs([worker], timeout=60)[1] == []
    for _ in range(2):
        results = envs.step(["print(context)"] * 4)
        assert [each and each.done for each in results] == [False, True, False, False]
        lost = results[1]
        assert lost is not None and lost.metadata is not None
        assert (lost.metadata["error_kind"], lost.metadata["mask"], lost.reward) == (
            "sandbox",
            True,
            0.0,
        )
        assert "the next reset begins a new one" in lost.observation.result.stderr
    envs.reset(context="abc")
    assert shown(envs.step(["print(context)"] * 4)) == ["abc"] * 4


def test_a_step_after_the_end_is_the_last_result_without_a_reward(envs: REPLVectorEnv) -> None:
    envs.reset(expected_answer="1")
    first = envs.step(["FINAL(1)", "pass", None, None])[0]
    again = envs.step(["print(1)", "pass", None, None])[0]
    assert first is not None and again is not None
    assert (first.reward, again.reward, again.observation.reward) == (1.0, 0.0, 0.0)
    assert again.done and again.metadata == first.metadata
    assert envs.environments[0].state().iteration == 1


class Picky(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        if "bad" in action.code:
            raise ZeroDivisionError("picky")
        return 0.5


def test_an_exception_of_a_rubric_is_raised_after_the_others_have_stepped(sandbox: Sandbox) -> None:
    with REPLVectorEnv(3, sandbox=sandbox, rubric=Picky()) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError, match="picky") as caught:
            envs.step(["x = 1", "bad = 1", "x = 3"])
        assert "environment 1 of 3" in caught.value.__notes__[0]
        results = envs.step(["print(x)", None, "print(x)"])
        assert shown(results) == ["1", None, "3"]
        assert [each and each.reward for each in results] == [0.5, None, 0.5]


def test_the_results_of_the_others_are_kept_when_one_raises(sandbox: Sandbox) -> None:
    with REPLVectorEnv(4, sandbox=sandbox, rubric=Picky()) as envs:
        begun = envs.reset()
        assert (envs.results, envs.errors) == (begun, {})
        with pytest.raises(ZeroDivisionError) as caught:
            envs.step(["FINAL('x')", "bad = 1", None, "bad = 2"])
        assert "environment 3 failed too: ZeroDivisionError: picky" in caught.value.__notes__
        assert [each and (each.reward, each.done) for each in envs.results] == [
            (0.5, True),
            None,
            None,
            None,
        ]
        assert {index: str(error) for index, error in envs.errors.items()} == {
            1: "picky",
            3: "picky",
        }
        code = "print(globals()['b' + 'ad'])"
        results = envs.step([None, code, "print(1)", code])
        assert shown(results) == [None, "1", "1", "2"]
        assert (envs.results, envs.errors) == (results, {})


def test_an_episode_whose_end_could_not_be_scored_is_over(sandbox: Sandbox) -> None:
    with REPLVectorEnv(2, sandbox=sandbox, rubric=Picky()) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError):
            envs.step(["FINAL('bad')", "pass"])
        again, other = envs.step(["pass", "pass"])
        assert again is not None and other is not None
        assert (again.done, again.reward, other.done) == (True, 0.0, False)
        assert again.observation.metadata["final_answer"] == "bad"


def test_a_step_says_which_environment_has_no_episode_and_why(envs: REPLVectorEnv) -> None:
    with pytest.raises(ValueError, match="max_iterations"):
        envs.reset([None, None, {"max_iterations": -1}, None])
    assert [each is None for each in envs.results] == [False, False, True, False]
    assert list(envs.errors) == [2]
    with pytest.raises(NotReset, match=r"environment 2: .*ValueError: max_iterations"):
        envs.step(["1"] * 4)
    assert shown(envs.step(["1", "1", None, "1"])) == ["1", "1", None, "1"]
    with pytest.raises(NotReset, match=r"environment 2: .*ValueError: max_iterations"):
        envs.step(["1"] * 4)
    envs.reset()
    assert shown(envs.step(["1"] * 4)) == ["1"] * 4


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (["1"], ValueError, "list of 4"),
        ("four", ValueError, "list of 4"),
        (["x = 1", "x = 1", "x = 1", 4], TypeError, r"actions\[3\]"),
        (None, ValueError, "actions must be a list of 4"),
        (iter(["x = 1"] * 4), ValueError, "actions must be a list of 4"),
        (dict.fromkeys(["a", "b", "c", "d"], "x = 1"), ValueError, "must be a list of 4"),
        ({"a = 1", "b = 1", "c = 1", "d = 1"}, ValueError, "must be a list of 4"),
    ],
)
def test_bad_actions_run_nothing(
    envs: REPLVectorEnv, actions: Any, error: type[Exception], message: str
) -> None:
    envs.reset()
    with pytest.raises(error, match=message):
        envs.step(actions)
    assert [env.state().iteration for env in envs.environments] == [0] * 4


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "1"])
def test_an_invalid_timeout_is_one_error_and_runs_nothing(envs: REPLVectorEnv, seconds) -> None:
    envs.reset()
    with pytest.raises((TypeError, ValueError), match="timeout_s must be") as raised:
        envs.step(["x = 1"] * 4, timeout_s=seconds)
    assert not hasattr(raised.value, "__notes__")
    assert [env.state().iteration for env in envs.environments] == [0] * 4


def test_an_environment_that_was_not_reset_cannot_be_stepped(envs: REPLVectorEnv) -> None:
    with pytest.raises(NotReset):
        envs.step(["1"] * 4)
    envs.reset()
    envs.close()
    with pytest.raises(NotReset):
        envs.step(["1"] * 4)


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError)])
def test_an_invalid_number_of_environments_is_refused(n: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="n must be"):
        REPLVectorEnv(n)


# ── awaited ──────────────────────────────────────────────────────────────────────────────────────


def test_an_event_loop_resets_and_steps_environments() -> None:
    meeting = threading.Barrier(3)

    async def use() -> None:
        async with REPLVectorEnv(3, tools={"meet": lambda: meeting.wait(60)}) as envs:
            results = await envs.areset(context=LARGE, expected_answer="1400000")
            assert [each.observation.context_length for each in results] == [1_400_000] * 3
            addresses = shown(await envs.astep(["print(id(context), meet() < 3)"] * 3))
            assert len(set(addresses)) == 1 and "True" in str(addresses[0])
            with pytest.raises(RuntimeError, match="astep"):
                envs.step(["1"] * 3)
            with pytest.raises(RuntimeError, match="aclose"):
                envs.close()
            codes = ["FINAL(len(context))", None, "import os\nos._exit(1)"]
            first, second, third = await envs.astep(codes)
            assert first is not None and third is not None and third.metadata is not None
            assert (first.reward, second, third.metadata["error_kind"]) == (1.0, None, "crash")

    asyncio.run(use())


@pytest.mark.parametrize("arguments", [{"nothing": 1}, {"max_iterations": 0}])
def test_after_a_refused_plain_reset_the_group_may_be_awaited(
    sandbox: Sandbox, arguments: dict[str, Any]
) -> None:
    async def use(envs: REPLVectorEnv) -> None:
        (result,) = await envs.areset(expected_answer="x")
        assert not result.done
        await envs.aclose()

    envs = REPLVectorEnv(1, sandbox=sandbox)
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        envs.reset(**arguments)
    asyncio.run(use(envs))


def test_blocking_episodes_refuse_asynchronous_calls(envs: REPLVectorEnv) -> None:
    envs.reset()
    with pytest.raises(RuntimeError, match="reset, step and close"):
        asyncio.run(envs.astep(["1"] * 4))


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def struck_after(seconds: float) -> Iterator[None]:
    """Ctrl-C in this thread after a while; 0: when SIGALRM is sent."""

    def strike(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_after_an_interrupted_step_all_episodes_go_on_masked(envs: REPLVectorEnv) -> None:
    for seconds in GROWING:
        envs.reset()
        with pytest.raises(KeyboardInterrupt), struck_after(seconds):
            envs.step(["x = 1\nwhile True: pass"] * 4)
        results = envs.step(["print(x)"] * 4)
        if all(each and each.observation.result.success for each in results):
            break
    assert shown(results) == ["1"] * 4
    assert [each and each.metadata and each.metadata["mask"] for each in results] == [True] * 4


def test_an_interrupted_reset_leaves_no_session(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = sandbox.statistics().open
    seen: list[int] = []

    def wait(self: Session, name: str, value: Any) -> None:
        seen.append(sandbox.statistics().open - open_before)
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("it has not struck")

    with REPLVectorEnv(4, sandbox=sandbox) as envs:
        with monkeypatch.context() as patch, struck_after(0):
            patch.setattr(Session, "set", wait)
            with pytest.raises(KeyboardInterrupt):
                envs.reset(context="abc")
        assert (seen, sandbox.statistics().open) == ([4], open_before)
        envs.reset(context="abc")
        assert shown(envs.step(["print(context)"] * 4)) == ["abc"] * 4
    assert sandbox.statistics().open == open_before


class Struck:
    """A generator that Ctrl-C interrupts right after an effect that is not recorded yet."""

    def __init__(self, turn: Effects[None]) -> None:
        self.turn = turn
        self.throw = turn.throw

    def send(self, reply: Any) -> Any:
        self.turn.send(reply)
        raise KeyboardInterrupt


def test_an_interrupt_is_raised_wherever_the_batch_is() -> None:
    done: list[str] = []

    def turn() -> Effects[None]:
        try:
            yield lambda: None
        except KeyboardInterrupt:
            yield lambda: done.append("closed")
            raise

    turns: list[Any] = [Struck(turn()), turn()]
    with ThreadPoolExecutor(1) as threads, pytest.raises(KeyboardInterrupt):
        run_batch(turns, SessionBatch(), lambda: threads)
    # The other had not begun.
    assert done == ["closed"]


FORKED = """
import os, signal, sys
from repl_env import REPLVectorEnv

with REPLVectorEnv(3) as envs:
    envs.reset(context="of the parent")
    envs.step(["x = 42"] * 3)
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        assert all(result.done for result in envs.step(["x"] * 3))
        envs.reset(context="of the child")
        said = [each.observation.result.stdout for each in envs.step(["print(context)"] * 3)]
        envs.close()
        sys.exit(5 if said == ["of the child\\n"] * 3 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print([each.observation.result.stdout for each in envs.step(["print(x)"] * 3)])
"""


def test_a_forked_child_begins_episodes_of_its_own() -> None:
    """The threads that opened its parent's sessions are not in it."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.stdout == "5\n['42\\n', '42\\n', '42\\n']\n", done.stderr


async def test_calls_at_the_same_time_are_refused_and_one_is_carried_out(sandbox: Sandbox) -> None:
    """Each took some of the steps, and both failed."""
    async with REPLVectorEnv(3, sandbox=sandbox) as envs:
        for call in (envs.areset, partial(envs.astep, ["n = 1"] * 3)):
            first, second = await asyncio.gather(call(), call(), return_exceptions=True)
            assert isinstance(first, list) and len(first) == 3
            assert isinstance(second, SessionBusy) and "another reset or step" in str(second)
        assert [env.state().iteration for env in envs.environments] == [1] * 3


async def test_a_cancelled_reset_leaves_no_episode_and_an_error_that_names_it(
    sandbox: Sandbox,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Rubric):
        def __deepcopy__(self, memo: Any) -> Slow:
            return self

        def forward(self, action: Any, observation: Any) -> float:
            return 0.0

        def reset(self) -> None:
            begun.set()
            go_on.wait(LONG)

    go_on.set()
    async with REPLVectorEnv(2, sandbox=sandbox, rubric=Slow()) as envs:
        await envs.areset()
        go_on.clear()
        begun.clear()
        reset = asyncio.create_task(envs.areset())
        assert await asyncio.to_thread(begun.wait, LONG)
        reset.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reset
        with pytest.raises(NotReset, match="interrupted") as raised:
            await envs.astep(["1", "1"])
        assert not hasattr(raised.value, "__notes__")
        await envs.areset()
        assert shown(await envs.astep(["1", "1"])) == ["1", "1"]

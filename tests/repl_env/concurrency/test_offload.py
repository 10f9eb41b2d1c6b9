"""Work of a length that others decide does not block an event loop."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator

from repl_env import AsyncLocalREPLEnv, REPLAction, REPLEnvironment
from repl_env.common.threads import check_deadline, offload
from repl_env.episode.answers import by_json_schema
from repl_env.models import REPLObservation
from repl_env.rubrics import ExactMatchRubric, REPLRubric, Rubric
from tests.waiting import PATIENCE

LARGE = 5_000


def here() -> int:
    return threading.get_ident()


def not_here() -> int:
    check_deadline(long=True)
    return threading.get_ident()


async def test_short_work_is_done_on_the_loop() -> None:
    assert await offload(here) == here()


async def test_long_work_is_done_in_a_thread() -> None:
    assert await offload(not_here) != here()


async def test_work_that_takes_too_long_is_restarted_in_a_thread() -> None:
    def counted(upto: int) -> int:
        for _ in range(upto):
            check_deadline()
        return threading.get_ident()

    assert await offload(partial(counted, 10)) == here()
    assert await offload(partial(counted, 300_000)) != here()


async def test_errors_are_those_of_the_work() -> None:
    def fail() -> None:
        check_deadline(long=True)
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await offload(fail)


class Gate:
    """Work that waits to be let through."""

    def __init__(self) -> None:
        self.begun, self.opened, self.ended = threading.Event(), threading.Event(), False

    def __call__(self) -> None:
        check_deadline(long=True)
        self.begun.set()
        assert self.opened.wait(PATIENCE)
        self.ended = True


async def test_a_cancelled_caller_waits_for_begun_work_alone() -> None:
    gates = [Gate() for _ in range(3)]
    waiting = [asyncio.create_task(offload(gate)) for gate in gates]
    for gate in gates[:2]:
        await asyncio.to_thread(gate.begun.wait, PATIENCE)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [each.done() for each in waiting] == [False, False, True]
    waiting[0].cancel()  # once more, which changes nothing
    for gate in gates:
        gate.opened.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert [gate.ended for gate in gates] == [True, True, False]


async def test_a_schema_is_checked_the_same_in_a_thread_and_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("repl_env.common.threads.AT_ONCE_S", -1.0)
    check = await offload(partial(by_json_schema, {"type": "integer", "title": "aside"}))
    assert await offload(partial(check, 3)) == 3
    with pytest.raises(ValueError, match="not of type 'integer'"):
        await offload(partial(check, "3"))


class Meeting:
    """A loop that has to run for the called work to continue."""

    def __init__(self) -> None:
        self.asked, self.turned = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.asked.set()
        assert self.turned.wait(PATIENCE), "the loop that is to let this go on waits for it"

    async def turn(self) -> None:
        await asyncio.to_thread(self.asked.wait, PATIENCE)
        self.turned.set()

    def __deepcopy__(self, memo: object) -> Meeting:
        return self


class Judge(Rubric):
    """Calls a model, in each of the ways to call it."""

    def __init__(self) -> None:
        self.resetting, self.scoring = Meeting(), Meeting()

    def reset(self) -> None:
        self.resetting.wait()

    def forward(self, action: Any, observation: Any) -> float:
        self.scoring.wait()
        return 0.25


async def test_the_event_loop_runs_while_a_blocking_rubric_scores_and_is_reset() -> None:
    judge = Judge()
    async with AsyncLocalREPLEnv(rubric=judge) as env:
        await asyncio.gather(env.reset(), judge.resetting.turn())
        result, _ = await asyncio.gather(env.execute("1"), judge.scoring.turn())
    assert result.reward == 0.25


async def test_the_event_loop_runs_while_a_part_of_a_rubric_or_a_hook_waits() -> None:
    part, hook = Judge(), Meeting()
    part.resetting.turned.set()
    hooked = ExactMatchRubric()
    hooked.register_forward_hook(lambda *_: hook.wait())
    async with AsyncLocalREPLEnv(rubric=REPLRubric(outcome=hooked, process=part)) as env:
        await env.reset(expected_answer="x")
        assert (await asyncio.gather(env.execute("1"), part.scoring.turn()))[0].reward == 0.25
        assert (await asyncio.gather(env.execute("FINAL('x')"), hook.turn()))[0].reward == 1.0


async def test_the_event_loop_runs_while_a_transform_works() -> None:
    meetings = [Meeting(), Meeting()]
    coming = iter(meetings)

    def slow(observation: REPLObservation) -> REPLObservation:
        next(coming).wait()
        return observation

    environment = REPLEnvironment(transform=cast(Any, slow))
    await asyncio.gather(environment.reset_async(), meetings[0].turn())
    await asyncio.gather(environment.step_async(REPLAction(code="1")), meetings[1].turn())
    await environment.close_async()


async def test_a_cancelled_step_leaves_no_rubric_running() -> None:
    """The next step would call it while it is at this one."""
    judge = Judge()
    judge.resetting.turned.set()
    async with AsyncLocalREPLEnv(rubric=judge) as env:
        await env.reset()
        step = asyncio.create_task(env.execute("1"))
        await asyncio.to_thread(judge.scoring.asked.wait, PATIENCE)
        step.cancel()
        done, _ = await asyncio.wait([step], timeout=0)
        assert not done
        judge.scoring.turned.set()
        with pytest.raises(asyncio.CancelledError):
            await step


@pytest.mark.parametrize(
    "step",
    [
        {"code": f"FINAL(list(range({LARGE})))"},
        {"code": f"answer['content'] = list(range({LARGE}))\nanswer['ready'] = True"},
        {"is_final": True, "final_answer": list(range(LARGE))},
    ],
    ids=["called", "dict", "submitted"],
)
async def test_the_event_loop_runs_while_an_answer_is_checked(step: dict[str, Any]) -> None:
    meeting = Meeting()

    def slow(value: list[int]) -> list[int]:
        meeting.wait()
        return value

    async with AsyncLocalREPLEnv() as env:
        await env.reset(answer_schema=Annotated[list[int], AfterValidator(slow)])
        result, _ = await asyncio.gather(env.step(REPLAction(**step)), meeting.turn())

    assert result.done and len(result.observation.metadata["answer_value"]) == LARGE

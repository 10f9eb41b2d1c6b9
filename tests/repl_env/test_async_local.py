"""`AsyncLocalREPLEnv` does what `LocalREPLEnv` does, and any number of them at once."""

import asyncio

import psutil
import pytest

from repl_env import AsyncLocalREPLEnv, REPLAction
from repl_env.errors import EpisodeDone, NotReset
from repl_env.rubrics import REPLRubric, Rubric
from repl_sandbox import AsyncSandbox


@pytest.fixture
async def sandbox():
    async with AsyncSandbox() as sandbox:
        yield sandbox


async def test_an_episode_runs_from_reset_to_reward(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        first = await env.reset(context="one two", task_prompt="t", expected_answer="2")
        assert first.observation.context_length == 7
        step = await env.execute("words = context.split()\nwords")
        assert step.observation.result.value == "['one', 'two']"
        assert (await env.get_variable("words")).observation.result.stdout == "['one', 'two']\n"
        assert "words" in await env.list_variables()
        last = await env.step(REPLAction(code="FINAL(len(words))"))
        assert (last.reward, last.done) == (1.0, True)
        assert (await env.state()).final_answer == "2"
        with pytest.raises(EpisodeDone):
            await env.execute("1")
        await env.reset(expected_answer="x")
        assert (await env.submit_final_answer("x")).reward == 1.0
    with pytest.raises(NotReset):
        await env.execute("1")


async def test_failures_and_the_last_iteration_are_the_same_as_in_plain_episodes(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset(context="c", max_iterations=3)
        assert (await env.execute("1/0")).observation.error_kind == "exception"
        assert (await env.execute("import os; os._exit(1)")).observation.error_kind == "crash"
        last = await env.execute("answer['content'] = context")
        assert last.observation.metadata["final_answer"] == "c"
        assert last.observation.result.stdout.endswith("Maximum iterations (3) reached.")


async def test_episodes_run_at_the_same_time(sandbox):
    together = asyncio.Barrier(4)

    async def meet(prompt):
        # All four must be in a sub-call at once, or nobody passes.
        async with asyncio.timeout(20):
            await together.wait()
        return prompt.upper()

    async def episode(text):
        async with AsyncLocalREPLEnv(sandbox=sandbox, llm_query_fn=meet) as env:
            await env.reset(context=text)
            return (await env.execute("FINAL(llm_query(context))")).observation.metadata[
                "final_answer"
            ]

    assert await asyncio.gather(*map(episode, "abcd")) == ["A", "B", "C", "D"]


async def test_a_cancelled_step_leaves_an_episode_that_goes_on_and_is_masked(sandbox):
    called = asyncio.Event()

    async def never(prompt):
        called.set()
        await asyncio.Event().wait()

    env = AsyncLocalREPLEnv(sandbox=sandbox, llm_query_fn=never, max_output_length=50)
    async with env:
        await env.reset(context="c")
        step = asyncio.create_task(env.execute("x = 1\nllm_query(context)"))
        await called.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        after = await env.execute("print('a' * 100)")
        assert (after.observation.iteration, after.observation.metadata["mask"]) == (1, True)
        assert "_out[2]" in after.observation.result.stdout
        assert (await env.execute("len(_out[2])")).observation.result.value == "101"


async def test_an_asynchronous_rubric_scores_asynchronous_steps(sandbox):
    class Judge(Rubric):
        async def forward(self, action, observation):
            await asyncio.sleep(0)
            return 0.5

    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=REPLRubric(outcome=Judge())) as env:
        await env.reset()
        last = await env.execute("FINAL(1)")
        assert (last.reward, last.observation.metadata["reward_components"]) == (
            0.5,
            {"outcome": 0.5},
        )


def test_a_shared_sandbox_ends_with_its_event_loop():
    async def episodes():
        async def one(number):
            async with AsyncLocalREPLEnv() as env:
                await env.reset(context=str(number))
                return (await env.execute("context")).observation.result.value

        return await asyncio.gather(*map(one, range(3)))

    before = set(psutil.Process().children(recursive=True))
    assert asyncio.run(episodes()) == ["'0'", "'1'", "'2'"]
    _, alive = psutil.wait_procs(
        set(psutil.Process().children(recursive=True)) - before, timeout=10
    )
    assert alive == []

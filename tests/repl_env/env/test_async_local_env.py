"""`AsyncLocalREPLEnv` does what `LocalREPLEnv` does, and any number of them at once."""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, REPLAction, REPLVectorEnv
from repl_env.episode import sandboxes
from repl_env.errors import EpisodeDone, NotReset
from repl_env.rubrics import ExactMatchRubric, REPLRubric, Rubric
from repl_sandbox import AsyncSandbox, Limits, Sandbox, SessionBusy
from tests.limits import PATIENT


@pytest.fixture
async def sandbox():
    async with AsyncSandbox(limits=PATIENT) as sandbox:
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
        # All four must be in a sub-call at once, or none passes.
        async with asyncio.timeout(60):
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


async def test_an_answer_of_a_cancelled_step_counts_after_a_follow_up_that_it_refuses(sandbox):
    called = asyncio.Event()

    async def never(prompt):
        called.set()
        await asyncio.Event().wait()

    async with AsyncLocalREPLEnv(sandbox=sandbox, llm_query_fn=never) as env:
        await env.reset(context="c", expected_answer="7")
        step = asyncio.create_task(env.execute("FINAL(7)\nllm_query(context)"))
        await called.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        with pytest.raises(ValueError, match="step, then follow up"):
            await env.follow_up(task_prompt="more", expected_answer="8")
        assert (await env.execute("1")).reward == 1.0


class Forgetful(ExactMatchRubric):
    """Fails when it is reset for the second time."""

    resets = 0

    def reset(self):
        super().reset()
        self.resets += 1
        if self.resets == 2:
            raise KeyError("no second time")


async def test_a_follow_up_that_its_rubric_refuses_leaves_the_episode(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=Forgetful()) as env:
        await env.reset(expected_answer="7")
        with pytest.raises(KeyError, match="no second time"):
            await env.follow_up(task_prompt="more", expected_answer="8", variables={"x": 7})
        assert "x" in await env.list_variables()
        assert (await env.execute("FINAL(x)")).reward == 1.0


class Leaves(Rubric):
    """Raises what ends event loops and tasks, from its reset or from its score."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.at = error, at

    async def reset(self):
        if self.at == "reset":
            raise self.error

    async def forward(self, action, observation):
        await asyncio.sleep(0)
        raise self.error


class LeavesAtOnce(Rubric):
    """The same, in plain code."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.at = error, at

    def reset(self):
        if self.at == "reset":
            raise self.error

    def forward(self, action, observation):
        raise self.error


@pytest.mark.parametrize("rubric", [Leaves, LeavesAtOnce])
@pytest.mark.parametrize("error", [asyncio.CancelledError("no"), SystemExit(3), StopIteration(3)])
async def test_an_exception_of_a_rubric_neither_ends_the_loop_nor_cancels(sandbox, rubric, error):
    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=rubric(error, "step")) as env:
        await env.reset()
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await env.execute("x = 1")
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await env.execute("FINAL(x)")
        with pytest.raises(EpisodeDone) as done:
            await env.execute("x")
        assert done.value.result.observation.metadata["final_answer"] == "1"
    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=rubric(error, "reset")) as env:
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await env.reset()


async def test_a_step_cancelled_during_its_scoring_is_cancelled(sandbox):
    asked = asyncio.Event()

    class Waits(Rubric):
        async def forward(self, action, observation):
            asked.set()
            await asyncio.Event().wait()

        def __deepcopy__(self, memo):
            return self

    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=Waits()) as env:
        await env.reset()
        step = asyncio.create_task(env.execute("x = 1"))
        await asked.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step


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


async def test_a_plain_sandbox_just_works():
    with Sandbox() as plain:
        async with AsyncLocalREPLEnv(sandbox=plain) as env:
            await env.reset(context="c")
            assert (await env.execute("context")).observation.result.value == "'c'"
            branch = await env.branch()
            assert (await branch.execute("context * 2")).observation.result.value == "'cc'"
            await branch.close()
        assert plain.statistics().open == 0
        with LocalREPLEnv(sandbox=plain) as env:
            env.reset(context="d")
            assert env.execute("context").observation.result.value == "'d'"


def test_episodes_of_all_loops_and_threads_share_one_sandbox():
    """The first user starts the sandbox; a loop that ends does not end it."""
    settings = sandboxes.SandboxSettings(limits=Limits(processes=9))

    async def one(number):
        async with AsyncLocalREPLEnv(limits=Limits(processes=9)) as env:
            await env.reset(context=str(number))
            return (await env.execute("context")).observation.result.value

    async def episodes():
        found = await asyncio.gather(*map(one, range(3)))
        return found, (await sandboxes.SandboxProvider(None, settings).async_sandbox()).plain

    found, first = asyncio.run(episodes())
    assert found == ["'0'", "'1'", "'2'"]
    with ThreadPoolExecutor(2) as pool:
        for found, sandbox in pool.map(lambda _: asyncio.run(episodes()), range(2)):
            assert (found, sandbox) == (["'0'", "'1'", "'2'"], first)
    assert sandboxes.SandboxProvider(None, settings).blocking_sandbox() is first
    first.close()
    found, second = asyncio.run(episodes())
    assert found == ["'0'", "'1'", "'2'"]
    assert second is not first
    second.close()


async def test_a_cancelled_start_of_a_shared_sandbox_is_continued_by_the_next_caller():
    settings = sandboxes.SandboxSettings(limits=Limits(processes=10))
    source = sandboxes.SandboxProvider(None, settings)
    waiting = asyncio.ensure_future(source.async_sandbox())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    face = await source.async_sandbox()
    assert face.plain is source.blocking_sandbox()
    async with face.session() as session:
        assert (await session.run("1 + 1")).value == "2"
    face.plain.close()


def test_a_shared_sandbox_ends_with_its_process():
    code = (
        "import asyncio, psutil\n"
        "from repl_env import AsyncLocalREPLEnv\n"
        "async def main():\n"
        "    async with AsyncLocalREPLEnv() as env:\n"
        "        await env.reset(context='c')\n"
        "        return (await env.execute('context')).observation.result.value\n"
        "assert asyncio.run(main()) == \"'c'\"\n"
        "print(*[p.pid for p in psutil.Process().children(recursive=True)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    over = time.time()
    pids = list(map(int, done.stdout.split()))
    assert pids
    left = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() < over:  # otherwise another process has its number
                left.append(process)
    assert psutil.wait_procs(left, timeout=60)[1] == []


async def test_many_environments_at_once_take_a_plain_sandbox_and_share_their_context(sandbox):
    large = "a line\n" * 200_000
    async with sandbox, REPLVectorEnv(2, sandbox=sandbox.plain) as envs:
        await envs.areset(context=large)
        found = await envs.astep(["print(len(context), id(context))"] * 2)
        assert len({each.observation.result.stdout for each in found}) == 1


async def test_an_asynchronous_on_output_is_refused_and_nothing_runs(sandbox):
    async def hear(stream, text): ...

    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        with pytest.raises(TypeError, match="on_output must be a plain function"):
            await env.execute("x = 1", on_output=hear)
        assert (await env.state()).iteration == 0


async def test_an_answer_during_a_step_is_refused_and_nothing_is_scored_twice(sandbox):
    """The answer was accepted, and the running step ended with a reward as well."""
    running, go_on = asyncio.Event(), asyncio.Event()

    async def wait():
        running.set()
        await go_on.wait()

    async with AsyncLocalREPLEnv(sandbox=sandbox, tools={"wait": wait}) as env:
        await env.reset(expected_answer="7")
        step = asyncio.create_task(env.execute("answer['content'] = 1\nwait()\nFINAL(7)"))
        await running.wait()
        calls = [
            env.submit_final_answer(7),
            env.execute("1"),
            env.give_up(),
            env.follow_up(task_prompt="more"),
            env.draft(),
            env.branch(),
        ]
        for call in calls:
            with pytest.raises(SessionBusy):
                await call
        go_on.set()
        assert ((await step).reward, (await env.state()).iteration) == (1.0, 1)
        with pytest.raises(EpisodeDone):
            await env.submit_final_answer(7)


async def test_a_step_during_the_scoring_of_another_is_refused(sandbox):
    scoring, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Rubric):
        def __deepcopy__(self, memo):
            return self

        async def forward(self, action, observation):
            scoring.set()
            await go_on.wait()
            return 1.0

    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=Slow()) as env:
        await env.reset()
        step = asyncio.create_task(env.execute("1"))
        await scoring.wait()
        with pytest.raises(SessionBusy, match="at another step"):
            await env.execute("2")
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        go_on.set()
        assert (await env.execute("3")).observation.result.value == "3"


async def test_of_concurrent_resets_one_begins_an_episode_and_no_session_leaks(sandbox):
    before = sandbox.statistics().open
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        resets = [env.reset(context=str(n)) for n in range(4)]
        results = await asyncio.gather(*resets, return_exceptions=True)
        assert [type(each) for each in results[1:]] == [SessionBusy] * 3
        assert "at another reset" in str(results[1])
        assert (await env.execute("context")).observation.result.value == "'0'"
        reset = asyncio.create_task(env.reset())
        await asyncio.sleep(0)
        reset.cancel()
        await asyncio.wait({reset})
        await env.reset(context="after")
        assert (await env.execute("context")).observation.result.value == "'after'"
    assert sandbox.statistics().open == before

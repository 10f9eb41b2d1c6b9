"""Branches of an episode: session and episode go on apart, from the same point."""

from __future__ import annotations

import asyncio

import pytest

from repl_env import (
    AsyncLocalREPLEnv,
    EpisodeDone,
    ExactMatchRubric,
    NotReset,
    REPLAction,
    REPLEnvironment,
    Rubric,
)
from repl_env.rlm import Budget
from repl_env.rlm.answerers import PROBE_PROMPT
from repl_sandbox import AsyncSandbox, SandboxError
from tests.repl_env.environment_internals import wrapped_environment


class Counting(Rubric):
    """Scores a step by how many were scored before it in the same episode."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def reset(self):
        self.seen = []

    def forward(self, action, observation):
        self.seen.append(action.code)
        return float(len(self.seen))


def test_a_branch_goes_on_where_the_episode_was_and_apart_from_it(make):
    env = make(rubric=Counting())
    env.reset(
        context="a b c", task_prompt="count", max_iterations=4, episode_id="e", files={"f": "0"}
    )
    env.execute("n = len(context.split())\nopen('f', 'w').write(str(n))")
    branch = env.branch()
    try:
        before = env.state()
        assert branch.state() == before.model_copy(update={"episode_id": "e/1"})
        assert env.rubric is not branch.rubric
        ours = branch.execute("n += 1\nextra = 1\n(n, open('f').read())")
        assert ours.observation.result.value == "(4, '3')"
        assert (ours.reward, ours.observation.iteration) == (2.0, 2)
        assert "extra" in branch.list_variables()
        assert "extra" not in env.list_variables()
        assert env.state() == before
        assert env.execute("n").reward == 2.0
        assert env.execute("n").reward == 3.0
        assert branch.execute("n").observation.result.value == "4"
        assert branch.rubric.seen != env.rubric.seen
        done = branch.execute("n")
        assert (done.done, env.state().iteration, env.state().stop_reason) == (True, 3, None)
        env.close()
        with pytest.raises(EpisodeDone):
            branch.execute("n")
    finally:
        branch.close()


def test_branches_have_separate_answers_and_scores(make):
    env = make(rubric=ExactMatchRubric())
    env.reset(expected_answer="2", max_iterations=5)
    right, wrong = env.branch(), env.branch()
    try:
        assert right.execute("FINAL(2)").reward == 1.0
        assert wrong.execute("FINAL(3)").reward == 0.0
        assert not env.state().stop_reason
        result = env.execute("answer['content'] = '2'\nanswer['ready'] = True")
        assert (result.reward, result.done) == (1.0, True)
        after = env.branch()
        with pytest.raises(EpisodeDone) as caught:
            after.execute("1")
        assert caught.value.result.metadata["final_answer"] == "2"
        after.close()
    finally:
        right.close()
        wrong.close()


def test_ids_name_the_original_of_a_branch(make):
    env = make()
    env.reset(episode_id="e")
    one, two = env.branch(), env.branch()
    deep = two.branch()
    ids = [each.state().episode_id for each in (env, one, two, deep)]
    for each in (one, deep, two):
        each.close()
    assert ids == ["e", "e/1", "e/2", "e/2/1"]
    env.reset(episode_id="again")
    branch = env.branch()
    assert branch.state().episode_id == "again/1"
    branch.close()


def test_tools_and_subcalls_work_and_fail_for_the_branch_alone(make):
    asked, down = [], []

    def ask(prompt):
        asked.append(prompt)
        if prompt == "fail" or down:
            down.append(prompt)
            raise ConnectionError("no route")
        return prompt.upper()

    env = make(llm_query_fn=ask, tools={"double": lambda x: 2 * x})
    env.reset()
    branch = env.branch()
    try:
        assert branch.execute("double(21), llm_query('a')").observation.result.value == "(42, 'A')"
        assert branch.execute("llm_query('fail')").metadata["error_kind"] == "llm"
        down.clear()
        fine = env.execute("llm_query('b')")
        assert (fine.metadata["error_kind"], fine.metadata["mask"]) == (None, False)
        assert branch.execute("1").metadata["mask"] is True
    finally:
        branch.close()
    assert asked == ["a", "fail", PROBE_PROMPT, "b"]


def test_seeds_make_candidates_differ(make):
    env = make()
    env.reset(seed=1)
    env.execute("import random")
    branches = [env.branch(), env.branch(), env.branch(seed=1), env.branch(seed=2)]
    drawn = [branch.execute("random.random()").observation.result.value for branch in branches]
    for branch in branches:
        branch.close()
    assert drawn[0] == drawn[1]
    assert drawn[2] != drawn[3]


def test_a_branch_can_be_saved_and_reset(make, tmp_path):
    env = make()
    env.reset(context="text", episode_id="e")
    env.execute("x = 1")
    branch = env.branch()
    try:
        branch.execute("x = 2")
        branch.save(tmp_path / "branch")
        branch.reset(context="new")
        assert branch.execute("context").observation.result.value == "'new'"
        assert env.execute("x").observation.result.value == "1"
        env.load(tmp_path / "branch")
        assert env.state().episode_id == "e/1"
        assert env.execute("x").observation.result.value == "2"
    finally:
        branch.close()


def test_an_episode_that_cannot_branch_is_an_error(make, sandbox):
    with pytest.raises(NotReset):
        make().branch()
    env = make()
    env.reset()
    with pytest.raises(TypeError, match="seed"):
        env.branch(seed="x")
    branches = [env.branch() for _ in range(16)]
    with pytest.raises(SandboxError, match="branches=16"):
        env.branch()
    for branch in branches:
        branch.close()
    # A failed branch has no number.
    branch = env.branch()
    assert branch.state().episode_id.endswith("/17")
    branch.close()


def test_a_lost_branch_ends_its_own_episode_only(make):
    env = make()
    env.reset()
    env.execute("x = 1")
    branch = env.branch()
    died = branch.execute("import os\nos._exit(1)")
    assert died.metadata["error_kind"] == "crash"
    assert branch.execute("x").observation.result.value == "1"
    assert env.execute("x").observation.result.value == "1"
    branch.close()


def test_the_environment_itself_branches(sandbox):
    env = REPLEnvironment(sandbox=sandbox)
    env.reset(episode_id="e")
    branch = env.branch()
    assert branch.step(REPLAction(code="1 + 1")).result.value == "2"
    assert (branch.state.iteration, env.state.iteration) == (1, 0)
    branch.close()
    env.close()


def test_async_environments_branch():
    async def scenario():
        async with (
            AsyncSandbox() as sandbox,
            AsyncLocalREPLEnv(sandbox=sandbox) as env,
        ):
            await env.reset(context="x", episode_id="e")
            await env.execute("n = 1")
            branches = [await env.branch() for _ in range(3)]
            results = await asyncio.gather(
                *(branch.execute(f"n += {i}\nn") for i, branch in enumerate(branches))
            )
            assert [r.observation.result.value for r in results] == ["1", "2", "3"]
            with pytest.raises(RuntimeError, match="reset_async"):
                wrapped_environment(env).branch()
            for branch in branches:
                await branch.close()
            assert (await env.state()).iteration == 1

    asyncio.run(scenario())


def test_a_branch_has_spent_what_its_original_had_and_goes_on_apart(make):
    env = make(llm_query_fn=str.upper, budget=Budget(calls=2))
    env.reset()
    env.execute("llm_query('a')")
    with env.branch() as branch:
        assert branch.account.total.calls == 1
        branch.execute("llm_query('b')")
        assert branch.execute("llm_query('c')").observation.error_kind == "budget"
        assert (branch.account.total.calls, env.account.total.calls) == (2, 1)
    assert env.execute("llm_query('d')").observation.result.value == "'D'"

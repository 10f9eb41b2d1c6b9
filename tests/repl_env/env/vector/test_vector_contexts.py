"""One context for all environments of a group: its template, and branches that outlive it."""

from __future__ import annotations

import os

import pytest

from repl_env import REPLAction, REPLVectorEnv
from repl_sandbox import Sandbox
from repl_sandbox.errors import SandboxClosed, SandboxError
from tests.internals import zygote_client, zygote_pid
from tests.repl_env.env.vector.vector_results import LARGE, shown
from tests.repl_env.environment_internals import wrapped_environment
from tests.waiting import eventually


def test_a_context_for_all_is_loaded_once(envs: REPLVectorEnv, templates: list[Sandbox]) -> None:
    results = envs.reset(context=LARGE)
    assert [each.observation.context_length for each in results] == [len(LARGE)] * 4
    assert len(templates) == 1
    # Shared memory, as in forks of one process that held it.
    (address,) = set(shown(envs.step(["print(id(context))"] * 4)))
    envs.step(["context = 1", "del context", "pass", "import os\nos._exit(1)"])
    code = "print(len(str(globals().get('context'))))"
    assert shown(envs.step([code] * 4)) == ["1", "4", "1400000", "1400000"]
    assert address


def test_the_same_context_again_is_the_same_template(
    envs: REPLVectorEnv, templates: list[Sandbox]
) -> None:
    envs.reset(context=LARGE)
    envs.reset(context="a line\n" * 200_000, task_prompt="another")
    assert len(templates) == 1
    table = {"rows": [LARGE]}
    envs.reset(context=table)
    assert len(templates) == 2
    with pytest.raises(SandboxError):
        templates[0].session()  # it was closed
    table["rows"].append("more")
    envs.reset(context=table)
    assert len(templates) == 3
    assert shown(envs.step(["print(len(context['rows']))"] * 4)) == ["2"] * 4
    envs.close()
    with pytest.raises(SandboxError):
        templates[-1].session()


def test_a_branch_goes_on_when_its_environment_begins_another_context(
    envs: REPLVectorEnv, templates: list[Sandbox]
) -> None:
    envs.reset(context=LARGE)
    with envs.environments[0].branch() as branch:
        branch.execute("kept = len(context)")
        envs.reset(context=LARGE + "!")
        assert branch.execute("kept").observation.result.value == "1400000"
        envs.reset(context="small")
        assert branch.execute("len(context)").observation.result.value == "1400000"
        with pytest.raises(SandboxError):
            templates[1].session()  # no branch is on it
    envs.reset(context="small")
    with pytest.raises(SandboxError):
        templates[0].session()


async def test_a_branch_goes_on_during_a_reset_on_an_event_loop() -> None:
    async with REPLVectorEnv(2) as envs:
        await envs.areset(context=LARGE)
        environment = wrapped_environment(envs.environments[0])
        branch = await environment.branch_async()
        await envs.areset(context="small")
        seen = await branch.step_async(REPLAction(code="len(context)"))
        await branch.close_async()
    assert seen.result.value == "1400000"


def test_a_branch_goes_on_when_the_group_is_closed(templates: list[Sandbox]) -> None:
    with REPLVectorEnv(2) as envs:
        envs.reset(context=LARGE)
        branches = [environment.branch() for environment in envs.environments]
    for branch in branches:
        result = branch.execute("FINAL(len(context))")
        assert (result.metadata or {})["final_answer"] == str(len(LARGE))
        assert "open" in repr(templates[0])
        branch.close()
    assert "closed" in repr(templates[0])  # and with the template the context's memory


async def test_a_branch_goes_on_when_the_group_of_an_event_loop_is_closed() -> None:
    async with REPLVectorEnv(2) as envs:
        await envs.areset(context=LARGE)
        branch = await wrapped_environment(envs.environments[0]).branch_async()
    seen = await branch.step_async(REPLAction(code="len(context)"))
    await branch.close_async()
    assert seen.result.value == str(len(LARGE))


def test_groups_of_one_context_each_share_it(envs: REPLVectorEnv, templates: list[Sandbox]) -> None:
    other = LARGE + "!"
    envs.reset([{"context": LARGE}, {"context": other}, {"context": LARGE}, {"context": other}])
    assert len(templates) == 2
    assert shown(envs.step(["print(len(context))"] * 4)) == ["1400000", "1400001"] * 2


def test_small_contexts_and_contexts_of_one_environment_have_no_template(
    envs: REPLVectorEnv, templates: list[Sandbox]
) -> None:
    envs.reset([{"context": LARGE + str(number)} for number in range(4)])
    assert shown(envs.step(["print(context[-1])"] * 4)) == ["0", "1", "2", "3"]
    envs.reset(context="small")
    assert shown(envs.step(["print(context)"] * 4)) == ["small"] * 4
    assert templates == []


def has_ended(template: Sandbox) -> bool:
    try:
        zygote_client(template).check_alive()
    except SandboxClosed:
        return True
    return False


def test_a_template_that_died_is_replaced(envs: REPLVectorEnv, templates: list[Sandbox]) -> None:
    envs.reset(context=LARGE)
    os.kill(zygote_pid(templates[0]), 9)
    eventually(lambda: has_ended(templates[0]))
    with pytest.raises(SandboxError):
        envs.reset(context=LARGE)
    envs.reset(context=LARGE)
    assert len(templates) == 2
    assert shown(envs.step(["print(len(context))"] * 4)) == ["1400000"] * 4

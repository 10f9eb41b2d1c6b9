"""`policy=` of environments: passed to the sandbox, and reported to the model as `error_kind`."""

from __future__ import annotations

import pytest

from repl_env import LocalREPLEnv
from repl_env.local import AsyncLocalREPLEnv
from repl_sandbox import Policy, Sandbox
from tests.repl_env.environment_internals import wrapped_environment

LINT = Policy("lint", imports=["json"], calls_denied=["eval"])


def test_a_refused_cell_is_a_policy_error_and_the_episode_goes_on():
    with LocalREPLEnv(policy=LINT) as env:
        env.reset(context="a b", expected_answer="2")
        refused = env.execute("import os")
        answered = env.execute("import json\nFINAL(len(context.split()))")

    assert refused.observation.error_kind == "policy"
    assert not refused.observation.metadata["mask"]
    assert "imports allowed: json" in refused.observation.result.stderr
    assert (answered.done, answered.reward) == (True, 1.0)


async def test_an_asynchronous_environment_has_the_policy_too():
    async with AsyncLocalREPLEnv(policy=LINT) as env:
        await env.reset()
        assert (await env.execute("eval('1')")).observation.error_kind == "policy"


def test_an_episode_under_restricted():
    with LocalREPLEnv(policy=Policy("restricted"), tools={"double": lambda n: 2 * n}) as env:
        env.reset(context={"n": 4}, expected_answer="8")
        env.execute("n = double(context['n'])")

        assert env.get_variable("n").observation.result.stdout == "8\n"
        assert env.execute("print('FINAL(' + str(n) + ')')").reward == 1.0


def test_equal_policies_share_a_sandbox_and_others_do_not():
    def pid(policy):
        with LocalREPLEnv(policy=policy) as env:
            env.reset()
            return wrapped_environment(env).sandbox_provider.blocking_sandbox()

    same = Policy("lint", imports=("json",), calls_denied={"eval"})

    assert pid(LINT) is pid(same)
    assert pid(LINT) is not pid(None)
    assert pid(LINT) is not pid(Policy("lint", imports=["json"]))


def test_a_wrong_policy_is_refused_when_the_environment_is_made():
    with pytest.raises(TypeError, match="policy must be a Policy"):
        LocalREPLEnv(policy="restricted")
    with pytest.raises(ValueError, match="imports: 'os' cannot be had"):
        LocalREPLEnv(policy=Policy("restricted", imports=["os"]))


def test_a_sandbox_has_its_own_policy():
    with Sandbox() as sandbox:
        with pytest.raises(TypeError, match=r"sandbox goes without .*policy"):
            LocalREPLEnv(sandbox=sandbox, policy=LINT)


@pytest.mark.parametrize("policy", [LINT, Policy("restricted")], ids=["lint", "restricted"])
def test_files_are_there_under_any_policy(policy):
    """No cell writes them, so no policy has to allow one."""
    with LocalREPLEnv(policy=policy) as env:
        env.reset(files={"data/a.txt": "x"})
        assert env.session.files.get("data/a.txt") == b"x"
        assert env.execute("1 + 1").observation.result.value == "2"

"""Attributes that OpenEnv's environment lets assign: when each holds, and what is refused."""

from __future__ import annotations

import pytest

from repl_env import LocalREPLEnv, REPLAction, REPLEnvironment, REPLError, REPLVectorEnv
from tests.repl_env.environment_internals import current_task, wrapped_environment

DEFAULTS = {
    "max_iterations": 30,
    "max_output_length": 8192,
    "context_preview_length": 500,
    "rlm_max_depth": 1,
    "rlm_max_iterations": None,
    "max_concurrent_subcalls": 8,
    "initial_context": None,
    "initial_task_prompt": "",
    "llm_query_fn": None,
    "llm_batch_fn": None,
    "subcall_fn": None,
    "subcall_batch_fn": None,
}
OTHERS = {
    "max_iterations": 3,
    "max_output_length": 50,
    "context_preview_length": 5,
    "rlm_max_depth": 2,
    "rlm_max_iterations": 4,
    "max_concurrent_subcalls": 2,
    "initial_context": "other",
    "initial_task_prompt": "Count.",
    "llm_query_fn": lambda prompt: "one",
    "llm_batch_fn": lambda prompts: prompts,
    "subcall_fn": lambda prompt: "deep",
    "subcall_batch_fn": lambda prompts: prompts,
}
WRONG = {
    "max_iterations": 0,
    "max_output_length": "8192",
    "context_preview_length": -1,
    "rlm_max_depth": 1.5,
    "rlm_max_iterations": 0,
    "max_concurrent_subcalls": 0,
    "initial_context": 5,
    "initial_task_prompt": 5,
    "llm_query_fn": "gpt",
    "llm_batch_fn": lambda one, two, three: [],
    "subcall_fn": 5,
    "subcall_batch_fn": 5,
}
OF_LOCAL = DEFAULTS.keys() - {"max_iterations", "initial_task_prompt"}


@pytest.fixture
def env(sandbox):
    made = REPLEnvironment(sandbox=sandbox)
    yield made
    made.close()


def run(env, code):
    return env.step(REPLAction(code=code))


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_attribute_is_there_and_is_what_it_was_assigned(env, name):
    assert getattr(env, name) == DEFAULTS[name]
    setattr(env, name, OTHERS[name])
    assert getattr(env, name) == OTHERS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_attributes_have_the_values_of_the_constructor(sandbox, name):
    argument = name.removeprefix("initial_")
    env = REPLEnvironment(sandbox=sandbox, **{argument: OTHERS[name]})
    assert getattr(env, name) == OTHERS[name]


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_assignment_is_refused_by_name_and_changes_nothing(env, name):
    with pytest.raises((TypeError, ValueError), match=name.removeprefix("initial_")):
        setattr(env, name, WRONG[name])
    assert getattr(env, name) == DEFAULTS[name]


@pytest.mark.parametrize("name", sorted(OF_LOCAL))
def test_a_local_environment_has_them_too(make, name):
    local = make()
    setattr(local, name, OTHERS[name])
    assert getattr(local, name) == getattr(wrapped_environment(local), name) == OTHERS[name]


def test_attributes_that_every_reset_sets_are_refused(make):
    local = make()
    assert (local.max_iterations, local.initial_task_prompt) == (30, "")
    for each in (local, REPLVectorEnv(1)):
        with pytest.raises(AttributeError, match=r"reset\(max_iterations=5\)"):
            each.max_iterations = 5
        with pytest.raises(AttributeError, match=r"reset\(task_prompt="):
            each.initial_task_prompt = "Count."


def test_an_attribute_of_a_group_is_of_all_its_environments(sandbox):
    with REPLVectorEnv(2, sandbox=sandbox) as envs:
        for name in OF_LOCAL:
            setattr(envs, name, OTHERS[name])
            assert getattr(envs, name) == OTHERS[name]
        assert [each.observation.context_preview for each in envs.reset()] == ["other"] * 2
        shown = [each.observation.result.stdout for each in envs.step(["print('x' * 500)"] * 2)]
        assert max(map(len, shown)) < 200


@pytest.mark.parametrize("when", ["before the first reset", "between two", "amid an episode"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_an_assignment_applies_from_the_next_reset_at_the_latest(env, name, when):
    if when != "before the first reset":
        env.reset()
    if when == "between two":
        env.step(REPLAction(is_final=True, final_answer=1))
    setattr(env, name, OTHERS[name])

    first = env.reset(**({} if name == "initial_context" else {"context": "a long context"}))
    last = run(
        env,
        "print('x' * 200)\n"
        "kinds = []\n"
        "for ask in (llm_query, llm_batch, rlm_query, rlm_query_batched):\n"
        "    try: kinds.append(ask('p' if ask in (llm_query, rlm_query) else ['q']))\n"
        "    except Exception: kinds.append(None)\n",
    )
    kinds = env.session.get("kinds")
    subcalls = current_task(env).subcalls
    seen = {
        "max_iterations": first.max_iterations == 3,
        "max_output_length": len(last.result.stdout) < 200,
        "context_preview_length": first.context_preview == "a lon",
        "rlm_max_depth": subcalls.max_depth == 2,
        "rlm_max_iterations": subcalls.max_iterations == 4,
        "max_concurrent_subcalls": env.settings.max_concurrent_subcalls == 2,
        "initial_context": env.state.context == "other",
        "initial_task_prompt": env.state.task_prompt == "Count.",
        "llm_query_fn": kinds == ["one", ["one"], "one", ["one"]],
        "llm_batch_fn": kinds == ["p", ["q"], "p", ["q"]],
        "subcall_fn": kinds == [None, None, "deep", ["deep"]],
        "subcall_batch_fn": kinds == [None, None, "p", ["q"]],
    }
    assert [each for each, holds in seen.items() if holds] == [name]


def test_max_iterations_assigned_during_an_episode_applies_to_it(env):
    env.reset()
    env.max_iterations = 2
    assert run(env, "1").max_iterations == 2
    last = run(env, "2")
    assert last.done and "Maximum iterations (2) reached." in last.result.stdout

    env.reset()
    for n in range(1, 3):
        env.max_iterations = n + 1  # one more each time
        assert run(env, "1").done == (n == 3)
    env.max_iterations = 1  # fewer than there were
    assert run(env, "1").done


def test_output_lengths_assigned_during_an_episode_apply_to_it(env):
    env.reset(context="a long context")
    env.max_output_length, env.context_preview_length = 50, 6
    seen = run(env, "print('x' * 500)")
    assert len(seen.result.stdout) < 200
    assert (seen.context_preview, seen.max_iterations) == ("a long", 30)


def test_a_function_assigned_during_an_episode_answers_its_next_call(env):
    env.llm_query_fn = lambda prompt: "first"
    env.reset()
    assert run(env, "print(llm_query('p'))").result.stdout == "first\n"
    env.llm_query_fn = lambda prompt, model: f"second of {model}"
    env.subcall_fn = lambda prompt: "deep"
    seen = run(env, "print(llm_query('p', 'm'), rlm_query('p'))")
    assert seen.result.stdout == "second of m deep\n"
    env.llm_query_fn = env.subcall_fn = None
    assert "not configured" in run(env, "llm_query('p')").result.exception


def test_an_episode_that_was_begun_without_functions_says_so_until_a_reset(env):
    env.reset()
    env.llm_query_fn = lambda prompt: "there"
    assert "not configured" in run(env, "llm_query('p')").result.exception
    env.reset()
    assert run(env, "print(llm_query('p'))").result.stdout == "there\n"


def test_a_branch_is_assigned_apart(env):
    env.llm_query_fn = lambda prompt: "of all"
    env.reset()
    branch = env.branch()
    branch.llm_query_fn, branch.max_iterations = (lambda prompt: "of the branch"), 2
    try:
        assert run(branch, "print(llm_query('p'))").result.stdout == "of the branch\n"
        assert run(env, "print(llm_query('p'))").result.stdout == "of all\n"
        assert (branch.state.max_iterations, env.state.max_iterations) == (2, 30)
    finally:
        branch.close()


def test_a_function_is_refused_if_sub_calls_are_configured_already(make, sandbox):
    class Answered:
        def names(self, settings):
            return frozenset()

    local = LocalREPLEnv.with_provider(Answered(), sandbox=sandbox)
    assert local.llm_query_fn is None
    with pytest.raises(REPLError, match="llm_query_fn"):
        local.llm_query_fn = lambda prompt: ""

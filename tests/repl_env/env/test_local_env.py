"""`LocalREPLEnv`: episodes on the real engine, from reset to the end."""

import json
import os
import signal

import pytest

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, REPLEnvironment, REPLVectorEnv
from repl_env.episode import sandboxes
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_sandbox import Limits
from tests.internals import zygote_pid


def test_an_episode_runs_from_reset_to_reward(env):
    first = env.reset(context="one two three", task_prompt="How many words?", expected_answer="3")
    assert not first.done
    assert first.observation.context_preview == "one two three"
    assert first.observation.result.stdout.splitlines() == [
        "REPL environment initialized.",
        "Context loaded (13 chars). Use 'context' variable to access it.",
        "Task: How many words?",
        "Use answer['content'] to store your answer, and set answer['ready'] = True when done.",
    ]

    step = env.execute("words = context.split()\nlen(words)")
    assert step.observation.result.value == "3"
    assert step.observation.result.stdout == "3\n"
    assert step.observation.result.locals_snapshot == {"words": "['one', 'two', 'three']"}
    assert (step.reward, step.done, step.observation.iteration) == (0.0, False, 1)

    last = env.execute("FINAL(len(words))")
    assert (last.reward, last.done) == (1.0, True)
    assert last.metadata["final_answer"] == "3"
    assert last.metadata["answer_value"] == 3
    assert last.metadata["stop_reason"] == "answer"
    assert last.metadata["reward_components"] == {"outcome": 1.0}
    assert last.metadata["total_iterations"] == 2


def test_the_metadata_of_every_step_has_the_same_keys(env):
    keys = {
        "task_prompt",
        "final_answer",
        "answer_value",
        "execution_time",
        "waiting_time",
        "error_kind",
        "mask",
        "reward_components",
        "usage",
        "stop_reason",
        "truncated",
        "isolation",
    }
    reset = env.reset(task_prompt="t")
    steps = [reset, env.execute("x = 1"), env.execute("1/0"), env.submit_final_answer("a")]
    for step in steps:
        assert keys <= step.metadata.keys()
        assert step.metadata["task_prompt"] == "t"
        assert step.metadata["isolation"]["tier"] in ("jailed", "confined")
        assert step.metadata is step.observation.metadata
        json.dumps(step.observation.model_dump(mode="json"), allow_nan=False)
    assert {"message", "ignored"} <= reset.metadata.keys()
    assert {"total_execution_time", "total_iterations"} <= steps[-1].metadata.keys()


def test_a_new_reset_begins_with_an_empty_session(env):
    env.reset(context="first")
    env.execute("x = 1")
    env.reset()
    assert env.execute("x").observation.error_kind == "exception"
    assert env.execute("context").observation.result.value == "''"


def test_variables_are_followed_through_steps(env):
    env.reset(context="c")
    assert {"context", "answer", "FINAL", "SHOW_VARS"} <= set(env.list_variables())
    assert "llm_query" not in env.list_variables()
    env.execute("a = 1\ndef f(): pass")
    assert {"a", "f"} <= set(env.list_variables())
    step = env.execute("del a")
    assert "a" not in step.observation.available_variables
    assert (
        env.state().namespace_keys == step.observation.available_variables == env.list_variables()
    )


def test_more_new_variables_than_are_reported_are_all_listed(env):
    env.reset()
    env.execute("for i in range(1000): globals()[f'v{i}'] = i")
    assert {f"v{i}" for i in range(1000)} <= set(env.list_variables())
    assert "context" in env.list_variables()


def test_get_variable_shows_the_repr(env):
    env.reset()
    env.execute("x = {'a': [1]}")
    assert env.get_variable("x").observation.result.stdout == "{'a': [1]}\n"
    assert env.get_variable("missing").observation.error_kind == "exception"
    with pytest.raises(ValueError, match="not the name"):
        env.get_variable("x); print(1")


def test_state_has_the_progress_of_the_episode(env):
    env.reset(context="text", task_prompt="t", episode_id="e-1", max_iterations=5)
    env.execute("x = 1")
    state = env.state()
    assert (state.episode_id, state.step_count, state.iteration) == ("e-1", 1, 1)
    assert (state.context, state.context_length, state.max_iterations) == ("text", 4, 5)
    assert (state.final_answer, state.stop_reason) == (None, None)
    env.submit_final_answer("a")
    assert (env.state().final_answer, env.state().stop_reason) == ("a", "answer")
    assert env.state().total_execution_time > 0


def test_an_equal_seed_gives_equal_random_numbers(env):
    def draw(seed):
        env.reset(seed=seed)
        return env.execute("import random\nrandom.random()").observation.result.value

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_last_iteration_runs_its_code(env):
    env.reset(max_iterations=2)
    env.execute("x = 1")
    last = env.execute("print('ran', x)")
    assert last.done
    assert last.observation.result.stdout == "ran 1\nMaximum iterations (2) reached."
    assert last.metadata["stop_reason"] == "max_iterations"
    assert last.reward == -0.1


def test_an_answer_in_the_last_iteration_counts(env):
    env.reset(max_iterations=1, expected_answer="x")
    last = env.execute("FINAL('x')")
    assert (last.reward, last.metadata["stop_reason"]) == (1.0, "answer")


def test_the_answer_dict_counts_at_the_last_iteration(env):
    env.reset(max_iterations=1, expected_answer="partial")
    last = env.execute("answer['content'] = 'partial'")
    assert (last.done, last.reward) == (True, 1.0)
    assert last.observation.result.stdout.endswith("Maximum iterations (1) reached.")


def test_an_invalid_draft_is_no_answer_at_the_end(env):
    env.reset(max_iterations=1)
    last = env.execute("answer['content'] = [0] * 300_000")
    assert (last.done, last.metadata["final_answer"]) == (True, None)


TRAP = """
class Trap(dict):
    def items(self):
        import os; os._exit(1)
    __iter__ = keys = items
answer = {"content": Trap(a=1)}
"""


@pytest.mark.parametrize("code", ["del answer", "answer = 5", "answer['content'] = object()", TRAP])
def test_a_missing_or_malformed_answer_dict_is_no_answer(env, code):
    env.reset(max_iterations=1)
    last = env.execute(code)
    assert (last.done, last.metadata["final_answer"]) == (True, None)


def test_a_step_after_the_end_is_an_error_and_scores_nothing(env):
    env.reset(expected_answer="right")
    wrong = env.execute("FINAL('wrong')")
    for again in (lambda: env.execute("FINAL('right')"), lambda: env.submit_final_answer("right")):
        with pytest.raises(EpisodeDone) as raised:
            again()
        assert raised.value.result == wrong
    assert env.state().final_answer == "wrong"
    assert env.rubric.last_score == 0.0


def test_a_step_before_reset_or_after_close_is_an_error(make):
    env = make()
    for use in (lambda: env.execute("1"), env.state, env.list_variables, lambda: env.session):
        with pytest.raises(NotReset, match="Call reset"):
            use()
    with env:
        env.reset()
        env.execute("1")
    env.close()
    with pytest.raises(NotReset):
        env.execute("1")


def test_equal_settings_share_one_sandbox():
    small = sandboxes.SandboxSettings(limits=Limits(processes=8))
    same = sandboxes.SandboxSettings(limits=Limits(processes=8))
    one = sandboxes.SandboxProvider(None, small).blocking_sandbox()
    assert sandboxes.SandboxProvider(None, same).blocking_sandbox() is one
    with LocalREPLEnv(limits=Limits(processes=8)) as env:
        env.reset()
        assert env.execute("1 + 1").observation.result.value == "2"
        assert sandboxes.SandboxProvider(None, small).blocking_sandbox() is one
    one.close()
    with LocalREPLEnv(limits=Limits(processes=8)) as env:
        env.reset()
        assert env.execute("1 + 1").observation.result.value == "2"
    again = sandboxes.SandboxProvider(None, small).blocking_sandbox()
    assert again is not one
    again.close()


def test_a_shared_sandbox_that_was_ended_is_replaced():
    """As an out-of-memory kill does: the sandbox is not closed, but its template is gone."""
    settings = sandboxes.SandboxSettings(limits=Limits(processes=11))
    with LocalREPLEnv(limits=Limits(processes=11)) as env:
        env.reset(context="a")
        one = sandboxes.SandboxProvider(None, settings).blocking_sandbox()
        os.kill(zygote_pid(one), signal.SIGKILL)
        # The session ends with its template, a moment later: a cell that lasts is sure to meet it.
        with pytest.raises(EpisodeAborted):
            env.execute("import time; time.sleep(60)")
        env.reset(context="b")
        assert env.execute("context").observation.result.value == "'b'"
        again = sandboxes.SandboxProvider(None, settings).blocking_sandbox()
        assert again is not one
    again.close()


@pytest.mark.parametrize("answers", [None, lambda prompt: "a"])
def test_an_environment_that_is_not_closed_is_reported(sandbox, answers):
    """Its session goes on with its sandbox, which may be shared by the process."""
    env = LocalREPLEnv(sandbox=sandbox, llm_query_fn=answers)
    env.reset()
    env.execute("answer['content'] = 'x'")
    with pytest.warns(ResourceWarning, match="unclosed <Session"):
        del env


@pytest.mark.parametrize("depth", [1, 2])
def test_an_environment_with_a_model_for_sub_calls_is_garbage_collected_too(
    sandbox, monkeypatch, depth
):
    """Child runs must not keep the environment alive through the session."""

    def chat(hf_token, llm_model=None):
        return lambda messages: "```repl\nFINAL(context)\n```"

    monkeypatch.setattr(REPLEnvironment, "_build_hf_chat_fn", staticmethod(chat))
    env = LocalREPLEnv(sandbox=sandbox)
    env.reset(hf_token="hf", llm_model="m", rlm_max_depth=depth)
    assert env.execute("rlm_query('q', context='c')").observation.result.success
    branch = env.branch()
    with pytest.warns(ResourceWarning, match="unclosed <Session"):
        del env
    assert branch.execute("rlm_query('q', context='c')").observation.result.success
    with pytest.warns(ResourceWarning, match="unclosed <Session"):
        del branch


def test_environments_run_side_by_side(make):
    a, b = make(), make()
    a.reset(context="A")
    b.reset(context="B")
    a.execute("x = context")
    b.execute("x = context")
    assert a.execute("x").observation.result.value == "'A'"
    assert b.execute("x").observation.result.value == "'B'"


def test_the_requested_tier_is_reported() -> None:
    with LocalREPLEnv(isolation="process", require="process") as env:
        env.reset(context="abc", files={"note.txt": "hello"})
        step = env.execute("print(open('note.txt').read(), context)")
        assert step.observation.result.stdout == "hello abc\n"
        assert step.metadata["isolation"]["tier"] == "process"


def test_tiers_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="require"):
        LocalREPLEnv(isolation="process", require="jailed")


def test_the_repr_of_a_step_result_is_short_and_readable(env):
    env.reset(context="a secret, " * 100_000)
    env.execute("figure = 1\nprint('some output, ' * 500)")
    result = env.execute("FINAL('the answer')")
    for shown in (repr(result), str(result.observation), str(env.state()), repr(env.state())):
        assert len(shown) < 1000 and "\n" not in shown
        assert "secret" not in shown and "metadata" not in shown
        assert "1000000" in shown and "final_answer='the answer'" in shown
    assert "reward=0.0" in repr(result) and "done=True" in repr(result)
    assert env.state().context == "a secret, " * 100_000


def test_a_long_text_is_printed_by_its_beginning_and_its_length(env):
    env.reset()
    result = env.execute("print('ab' * 1000)")
    assert "stdout='ababab" in repr(result) and "... (2,001 characters)" in repr(result)
    assert result.observation.result.stdout == "ab" * 1000 + "\n"
    failed = env.execute("1 / 0")
    assert "ZeroDivisionError" in repr(failed) and "error_kind='exception'" in repr(failed)


def test_the_repr_of_an_environment_says_where_it_is_and_nothing_of_its_contents():
    env = LocalREPLEnv()
    assert repr(env) == "<LocalREPLEnv without an episode>"
    with env:
        env.reset(context="secret", task_prompt="secret", expected_answer="secret")
        tier = env.session.isolation.tier
        env.execute("x = 'secret'")
        assert repr(env) == f"<LocalREPLEnv {tier}, open, iteration 1 of 30>"
        env.execute("FINAL(x)")
        assert repr(env) == f"<LocalREPLEnv {tier}, open, iteration 2 of 30, done: answer>"
    assert repr(env) == "<LocalREPLEnv without an episode>"


def test_the_repr_of_a_vector_counts_its_episodes() -> None:
    with REPLVectorEnv(2) as envs:
        assert repr(envs) == "<REPLVectorEnv of 2, without episodes>"
        envs.reset()
        envs.step(["FINAL(1)", "1"])
        assert repr(envs) == "<REPLVectorEnv of 2, 1 of 2 episodes done>"


@pytest.mark.parametrize("environment", [LocalREPLEnv, AsyncLocalREPLEnv])
def test_a_wrong_call_is_an_error_with_the_name_of_the_called_class(environment) -> None:
    with pytest.raises(TypeError, match=f"^{environment.__name__} has no argument 'nope'"):
        environment(nope=1)
    with pytest.raises(TypeError, match=r"'max_iterations'; pass reset\(max_iterations=\.\.\.\)$"):
        environment(max_iterations=5)
    with pytest.raises(TypeError, match=f"^{environment.__name__} takes its arguments by name"):
        environment("a context")

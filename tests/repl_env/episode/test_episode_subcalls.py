"""Code in the session asks models and tools of the host."""

import asyncio
import sys
import threading
from contextlib import contextmanager

import pytest

from repl_env import NotReset, REPLEnvironment, REPLError
from repl_env.rlm import Budget
from tests.limits import GROWING
from tests.waiting import LONG


def test_sub_calls_reach_the_functions_given(make):
    env = make(llm_query_fn=lambda p: f"<{p}>", llm_batch_fn=list)
    env.reset(context="c")
    assert {"llm_query", "llm_batch", "rlm_query"} <= set(env.list_variables())
    assert env.execute("llm_query(context)").observation.result.value == "'<c>'"
    assert env.execute("llm_batch(['a', 'b'])").observation.result.value == "['a', 'b']"
    assert env.execute("rlm_query('x', model='m')").observation.result.value == "'<x>'"


def test_a_sub_call_that_is_not_configured_says_so(env):
    env.reset()
    step = env.execute("llm_query('x')")
    assert "llm_query is not configured" in step.observation.result.stderr
    assert (step.observation.error_kind, step.metadata["mask"]) == ("exception", False)


def test_a_sub_call_that_fails_masks_the_episode_from_then_on(make):
    answers = iter(["fine"])

    def once(prompt):
        return next(answers, None) or fail()

    def fail():
        raise ConnectionError("no route")

    env = make(llm_query_fn=once)
    env.reset(expected_answer="x")
    assert not env.execute("llm_query('a')").metadata["mask"]
    failed = env.execute("text = llm_query('a')\n1/0")
    assert (failed.observation.error_kind, failed.metadata["mask"]) == ("llm", True)
    assert failed.reward == 0.0
    text = env.get_variable("text")
    assert text.observation.result.stdout == "'Error: ConnectionError: no route'\n"
    assert (text.observation.error_kind, text.metadata["mask"]) == (None, True)
    assert env.execute("FINAL('x')").metadata["mask"]
    env.reset()
    assert not env.execute("1").metadata["mask"]


def test_waiting_for_a_sub_call_is_not_execution(make):
    def slow(prompt):
        return str(threading.Event().wait(float(prompt)))

    env = make(llm_query_fn=slow)
    for limit in GROWING:
        env.reset()
        step = env.execute(f"llm_query('{3 * limit}')", timeout_s=limit)
        if step.observation.result.success:
            break
    assert step.observation.result.value == "'False'"
    assert step.metadata["waiting_time"] > step.metadata["execution_time"]


def test_tools_are_functions_of_the_host(make):
    def lookup(key, default=None):
        return {"a": [1, 2]}.get(key, default)

    env = make(tools={"lookup": lookup})
    env.reset()
    assert "lookup" in env.list_variables()
    assert env.execute("lookup('a')").observation.result.value == "[1, 2]"
    assert env.execute("lookup('b', default={'n': 1})").observation.result.value == "{'n': 1}"


class Meeting:
    """A function that answers once `size` of its calls are under way; `most`: that were at once."""

    def __init__(self, size):
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size, timeout=LONG)
        self._later = asyncio.Barrier(size)

    @contextmanager
    def _under_way(self):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        yield
        with self._lock:
            self._now -= 1

    def __call__(self, prompt):
        with self._under_way():
            self._barrier.wait()
        return prompt

    async def later(self, prompt):
        with self._under_way():
            await asyncio.wait_for(self._later.wait(), LONG)
        return prompt


CALLS = {
    "llm_query_batched": "llm_query_batched([str(n) for n in range({count})])",
    "llm_batch": "llm_batch(str(n) for n in range({count}))",
    "rlm_query_batched": "rlm_query_batched([str(n) for n in range({count})])",
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "list(ThreadPoolExecutor({count}).map(llm_query, map(str, range({count}))))",
    "spawned": "[h.result() for h in [rlm_spawn(str(n)) for n in range({count})]]",
}


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("width", [1, 3, None])
def test_the_number_of_concurrent_sub_calls_is_limited(make, kind, width):
    size = width or 8
    meeting = Meeting(size)
    function = meeting if kind == "plain" else meeting.later
    more = {} if width is None else {"max_concurrent_subcalls": width}
    env = make(llm_query_fn=function, **more)
    env.reset()
    for code in CALLS.values():
        result = env.execute(code.format(count=2 * size)).observation.result
        assert result.value == repr([str(n) for n in range(2 * size)]), result.stderr
    assert meeting.most == size


def test_an_assigned_concurrency_applies_from_the_next_reset(make):
    meeting = Meeting(2)
    env = make(llm_query_fn=meeting)
    env.max_concurrent_subcalls = 2
    env.reset()
    env.execute("llm_query_batched(list('abcd'))")
    assert meeting.most == 2
    with pytest.raises(ValueError, match="max_concurrent_subcalls must be at least 1"):
        env.max_concurrent_subcalls = 0


def test_a_batch_function_takes_all_prompts_in_one_call_and_may_return_any_iterable(make):
    env = make(llm_batch_fn=lambda prompts: (p.upper() for p in prompts), max_concurrent_subcalls=1)
    env.reset()
    assert env.execute("llm_query_batched(d.values() for d in [])").observation.result.value == "[]"
    code = "d = {'a': 'x', 'b': 'y'}\nllm_query_batched(d.values()), llm_query('z')"
    assert env.execute(code).observation.result.value == "(['X', 'Y'], 'Z')"


def test_an_asynchronous_function_serves_a_plain_episode(make):
    async def ask(prompt):
        return prompt.upper()

    env = make(llm_query_fn=ask)
    env.reset()
    assert env.execute("llm_query('a')").observation.result.value == "'A'"
    assert env.execute("llm_query_batched(['a', 'b'])").observation.result.value == "['A', 'B']"


def test_a_tool_that_steps_its_own_episode_gets_session_busy(make):
    def again():
        env.execute("1")

    env = make(tools={"again": again})
    env.reset()
    step = env.execute("again()")
    assert "SessionBusy" in step.observation.result.stderr
    assert (step.observation.error_kind, env.state().iteration) == ("exception", 1)
    assert env.execute("1 + 1").observation.result.value == "2"


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


def test_a_sub_call_beyond_the_budget_is_a_policy_error_and_spends_nothing(make):
    env = make(llm_query_fn=str.upper, budget=Budget(calls=1))
    env.reset()
    assert env.execute("llm_query('a')").metadata["spent"]["calls"] == 1
    step = env.execute("llm_query('b')")
    assert (step.observation.error_kind, step.metadata["mask"], step.done) == (
        "budget",
        False,
        False,
    )
    assert env.account.total.calls == 1


def test_an_episode_ends_when_its_time_is_spent_and_the_draft_counts(make):
    env = make(llm_query_fn=str.upper, budget=Budget(cpu_seconds=0.5))
    env.reset(expected_answer="d")
    env.execute("answer['content'] = 'd'")
    step = env.execute("from time import process_time as t\nend = t() + 1\nwhile t() < end: pass")
    assert (step.done, step.metadata["stop_reason"], step.metadata["final_answer"]) == (
        True, "budget", "d",
    )  # fmt: skip
    assert "Budget used up" in step.observation.result.stdout
    assert env.state().stop_reason == "budget"


def test_without_sub_calls_there_is_no_usage_of_them(env):
    with pytest.raises(NotReset):
        _ = env.account
    env.reset()
    with pytest.raises(REPLError, match="no sub-calls"):
        _ = env.account


def test_typed_answers_in_a_plain_episode(make):
    env = make(llm_query_fn=lambda p: "42", subcall_fn=lambda p: f"deep {p}")
    env.reset()
    step = env.execute("t = llm_query('n?', schema={'type': 'integer'})\n(t, t.value, t.ok)")
    assert step.observation.result.value == "('42', 42, True)"
    step = env.execute("h = rlm_spawn('x')\nh.result()")
    assert step.observation.result.value == "'deep x'"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_function_that_raises_system_exit_is_an_infrastructure_error(make, error):
    """`sys.exit` ended the loop that all sub-calls are on, and every later one waited."""

    def leave(prompt):
        raise error

    env = make(llm_query_fn=leave)
    env.reset()
    for _ in range(2):
        step = env.execute("llm_query('x')")
        assert f"Error: RuntimeError: {type(error).__name__}" in step.observation.result.value
        assert step.metadata["error_kind"] == "llm"


def test_a_coroutine_function_that_raises_system_exit_is_an_infrastructure_error(make):
    async def leave(prompt):
        sys.exit(3)

    env = make(llm_query_fn=leave)
    env.reset()
    for _ in range(2):
        step = env.execute("llm_batch(['x', 'y'])")
        assert step.observation.result.value.count("RuntimeError: SystemExit: 3") == 2


def test_the_model_of_a_reset_answers_and_recurses(make, monkeypatch):
    def chat(hf_token, llm_model=None):
        def answer(messages, model):
            if messages[0]["role"] == "system":
                return "```repl\nFINAL(len(context))\n```"
            return f"{llm_model} with {len(hf_token)}"

        return answer

    monkeypatch.setattr(REPLEnvironment, "_build_hf_chat_fn", staticmethod(chat))
    env = make()
    env.reset(hf_token="hf_abc", llm_model="small", rlm_max_depth=2)
    assert env.execute("llm_query('?')").observation.result.value == "'small with 6'"
    step = env.execute("rlm_query('How long?', context='12345')")
    assert step.observation.result.value == "'5'"
    assert env.account.total.children == 1
    env.reset()
    assert "not configured" in env.execute("llm_query('?')").observation.result.stderr


# ── further questions ────────────────────────────────────────────────────────────────────────────


def test_another_question_in_the_same_session(make):
    env = make(llm_query_fn=str.upper, budget=Budget(calls=5))
    env.reset(context="abc", expected_answer="3")
    assert env.execute("n = len(context)\nllm_query('x')\nFINAL(n)").reward == 1.0
    first = env.follow_up(task_prompt="Twice that?", expected_answer="6", variables={"k": 2})
    assert (first.done, first.metadata["task_prompt"]) == (False, "Twice that?")
    assert {"n", "k", "context"} <= set(env.list_variables())
    step = env.execute("FINAL(n * k)")
    assert (step.reward, step.done, env.state().iteration) == (1.0, True, 1)
    assert env.account.total.calls == 1


def test_the_same_draft_is_an_answer_again(env):
    env.reset()
    say = "answer['content'] = 'yes'; answer['ready'] = True"
    assert env.execute(say).done
    env.follow_up(task_prompt="And now?")
    assert env.draft() == ""
    assert env.execute(say).metadata["final_answer"] == "yes"


def test_a_further_question_needs_an_episode_and_good_arguments(env):
    with pytest.raises(NotReset):
        env.follow_up(task_prompt="?")
    env.reset()
    with pytest.raises(ValueError, match="variables: the name 'FINAL' is taken"):
        env.follow_up(task_prompt="?", variables={"FINAL": 1})
    assert env.execute("1").observation.result.value == "1"

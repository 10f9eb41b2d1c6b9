"""OpenEnv's runner, backends and controller: names, arguments and texts that code relies on."""

import threading
import time

import pytest

from repl_env.recursive_backends import (
    BackendLimits,
    ChildTrace,
    DirectLMBackend,
    LocalChildRLMBackend,
)
from repl_env.recursive_controller import create_server_recursive_controller
from repl_env.runner import LocalRLMRunner, RLMRunResult


def code(*blocks):
    return "\n".join(f"```repl\n{block}\n```" for block in blocks)


def chat(root, child="FINAL('child')", plain="plain"):
    """A chat function: `root` for runs about "root", `child` for others, `plain` for questions."""

    def answer(messages, model=None):
        if messages[0]["role"] != "system":
            return plain
        about_root = '"root"' in str(messages[1]["content"])
        return code(root if about_root else child)

    return answer


def test_a_run_answers_and_says_how():
    result = LocalRLMRunner(chat("FINAL(len(context))")).run("abcd", "root")
    assert isinstance(result, RLMRunResult)
    assert (result.final_answer, result.iterations, result.depth) == ("4", 1, 0)
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant"]
    assert result.child_traces == []


def test_a_child_is_traced_and_told_of():
    told = []
    runner = LocalRLMRunner(
        chat("FINAL(rlm_query('below'))", "FINAL(context)"),
        on_subcall_start=lambda *facts: told.append(facts),
        on_subcall_complete=lambda *facts: told.append((*facts[:2], facts[3])),
    )
    result = runner.run("c", "root")
    assert result.final_answer == "below"
    (trace,) = result.child_traces
    assert isinstance(trace, ChildTrace)
    assert (trace.depth, trace.prompt_preview, trace.result_preview, trace.error) == (
        1, "below", "below", None,
    )  # fmt: skip
    assert told == [(1, "default", "below"), (1, "default", None)]


def test_at_the_deepest_level_a_recursive_question_is_a_plain_one():
    result = LocalRLMRunner(chat("FINAL(rlm_query('x'))"), max_depth=1).run("c", "root")
    assert (result.final_answer, result.child_traces) == ("plain", [])


def test_a_batch_of_children_may_be_shortened():
    runner = LocalRLMRunner(
        chat("FINAL(''.join(rlm_query_batched(['A', 'B', 'C'])))", "FINAL(context)"),
        max_children_per_batch=2,
    )
    assert runner.run("c", "root").final_answer == "AB"


def test_the_number_of_children_has_a_limit_and_results_too():
    runner = LocalRLMRunner(
        chat("FINAL([rlm_query('aaaa'), rlm_query('b')])", "FINAL(context)"),
        max_children_total=1,
        result_truncation_limit=2,
    )
    assert runner.run("c", "root").answer_value == ["aa", "Error: max_children_total exceeded"]


def test_a_child_that_takes_too_long_is_ended():
    def slow(messages, model=None):
        if '"root"' in str(messages[1]["content"]):
            return code("FINAL(rlm_query('below'))")
        return code("while True: pass")

    for _ in range(3):  # a busy machine may be as slow, though not each time
        began = time.monotonic()
        result = LocalRLMRunner(slow, per_child_timeout_s=0.3).run("c", "root")
        assert result.final_answer == "Error: child timeout after 0.300s"
        assert result.child_traces[0].error == "child timeout after 0.300s"
        if (took := time.monotonic() - began) < 20:
            break
    assert took < 20  # the cell alone would run for 30


def test_a_run_that_takes_too_long_says_so():
    result = LocalRLMRunner(lambda messages: code("while True: pass")).run("c", "t", timeout_s=0.3)
    assert result.final_answer == "Error: child timeout after 0.300s"


def test_when_the_turns_are_used_up_the_model_is_asked_once_more():
    replies = iter([code("x = 1"), "FINAL(at last (really))"])
    result = LocalRLMRunner(lambda messages: next(replies), max_iterations=1).run("c", "t")
    assert result.final_answer == "at last (really)"


def test_a_backend_may_be_given():
    class Backend:
        max_depth, depth, child_traces = 2, 0, ()

        def query(self, prompt, model=None):
            return f"q:{prompt}:{model}"

        def query_batched(self, prompts, model=None):
            return [self.query(prompt, model) for prompt in prompts]

        recursive_query, recursive_query_batched = query, query_batched

    runner = LocalRLMRunner(
        chat("FINAL([llm_query('a', 'm'), *llm_batch(['b']), rlm_query('c')])"),
        backend_factory=lambda chat_fn, **arguments: Backend(),
    )
    assert runner.run("c", "root", model="d").answer_value == ["q:a:m", "q:b:d", "q:c:d"]


def test_runs_of_several_threads_are_apart():
    answers = {}

    def run(name):
        answers[name] = LocalRLMRunner(chat("FINAL(context)")).run(name, "root").final_answer

    threads = [threading.Thread(target=run, args=(f"c{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {f"c{n}": f"c{n}" for n in range(4)}


def test_each_turn_is_printed_if_asked_for(capsys):
    LocalRLMRunner(chat("FINAL(1)"), verbose=True).run("c", "root")
    assert "[depth=0] iteration=1" in capsys.readouterr().out


# ── backends and controller by themselves ────────────────────────────────────────────────────────


def test_a_direct_backend_asks_the_chat_function():
    backend = DirectLMBackend(lambda messages: messages[0]["content"] * 2)
    assert backend.query("ab") == "abab"
    assert backend.recursive_query("ab") == "abab"
    assert backend.query_batched([]) == []
    assert (backend.depth, backend.max_depth, backend.child_traces) == (0, 1, [])


def test_a_failure_in_a_batch_stays_in_its_place():
    def picky(messages, model):
        if messages[0]["content"] == "bad":
            raise ValueError("no")
        return "fine"

    backend = DirectLMBackend(picky)
    assert backend.query_batched(["a", "bad"]) == ["fine", "Error: no"]
    with pytest.raises(ValueError, match="no"):
        backend.query("bad")


def test_a_listener_that_fails_costs_nothing():
    class Runner:
        def __init__(self, chat_fn, **arguments):
            self.arguments = arguments

        def run(self, context, task_prompt, *, model=None):
            return RLMRunResult(f"{context}|{task_prompt}|{model}", [], 1)

    def fail(*facts):
        raise RuntimeError

    backend = LocalChildRLMBackend(
        str,
        runner_factory=Runner,
        system_prompt="s",
        max_iterations=3,
        env_max_iterations_multiplier=5,
        limits=BackendLimits(max_depth=2),
        on_subcall_start=fail,
        on_subcall_complete=fail,
    )
    assert backend.recursive_query("p", "m") == "p|p|m"


def test_a_controller_has_recursive_functions_only_with_depth():
    plain = create_server_recursive_controller(chat("1"), max_depth=1, max_iterations=3)
    assert (plain.rlm_query_fn, plain.rlm_batch_fn) == (None, None)
    assert plain.llm_query_fn("x", None) == "plain"
    deep = create_server_recursive_controller(
        chat("1", "FINAL(context + '!')"), max_depth=2, max_iterations=3
    )
    assert deep.rlm_query_fn("x", None) == "x!"
    assert deep.rlm_batch_fn(["x", "y"], None) == ["x!", "y!"]
    deep.close()

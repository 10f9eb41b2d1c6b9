"""OpenEnv's runner, backends and controller: names, arguments and texts that code relies on."""

import threading
import time

import pytest

from repl_env.errors import ModelError
from repl_env.recursive_backends import BackendLimits, DirectLMBackend, LocalChildRLMBackend
from repl_env.recursive_controller import create_server_recursive_controller
from repl_env.rlm import ScriptedModel
from repl_env.rlm.config import ChildTrace, RLMRunResult
from repl_env.runner import LocalRLMRunner


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


def test_a_run_returns_its_answer_and_trace():
    result = LocalRLMRunner(chat("FINAL(len(context))")).run("abcd", "root")
    assert isinstance(result, RLMRunResult)
    assert (result.final_answer, result.iterations, result.depth) == ("4", 1, 0)
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant"]
    assert result.child_traces == []


def test_a_child_is_traced_and_reported():
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


def test_at_the_maximum_depth_a_recursive_call_is_a_plain_one():
    result = LocalRLMRunner(chat("FINAL(rlm_query('x'))"), max_depth=1).run("c", "root")
    assert (result.final_answer, result.child_traces) == ("plain", [])


def test_a_batch_of_children_may_be_truncated():
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


def test_after_the_last_turn_the_model_is_called_once_more():
    replies = iter([code("x = 1"), "FINAL(at last (really))"])
    result = LocalRLMRunner(lambda messages: next(replies), max_iterations=1).run("c", "t")
    assert result.final_answer == "at last (really)"


def test_the_model_gets_openenv_s_text_when_its_turns_are_used_up():
    def chat(messages):
        over = "run out of REPL iterations" in messages[-1]["content"]
        return "FINAL(fallback)" if over else code("x = 1")

    result = LocalRLMRunner(chat, max_iterations=2, max_depth=1).run("c", "t")
    assert (result.final_answer, result.iterations) == ("fallback", 2)


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


def test_verbose_prints_each_turn(capsys):
    LocalRLMRunner(chat("FINAL(1)"), verbose=True).run("c", "root")
    assert "[depth=0] iteration=1" in capsys.readouterr().out


def model(text):
    """A chat function that is to be called once, or not at all."""
    return lambda messages: code(f"FINAL({text!r})")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"llm_chat_fn": None}, TypeError),
        ({"llm_chat_fn": "gpt-5-mini"}, TypeError),
        ({"system_prompt": None}, TypeError),
        ({"max_iterations": 0}, ValueError),
        ({"max_iterations": True}, TypeError),
        ({"max_depth": 0}, ValueError),
        ({"max_depth": 1.0}, TypeError),
        ({"depth": -1}, ValueError),
        ({"env_max_iterations_multiplier": 0}, ValueError),
        ({"max_batch_workers": 0}, ValueError),
        ({"max_batch_workers": None}, TypeError),
        ({"backend_factory": 3}, TypeError),
        ({"max_children_total": -1}, ValueError),
        ({"max_children_per_batch": -1}, ValueError),
        ({"result_truncation_limit": -1}, ValueError),
        ({"result_truncation_limit": "100"}, TypeError),
        ({"per_child_timeout_s": 0}, ValueError),
        ({"per_child_timeout_s": float("nan")}, ValueError),
        ({"per_child_timeout_s": "10"}, TypeError),
        ({"on_subcall_start": "print"}, TypeError),
        ({"on_subcall_complete": 3}, TypeError),
        ({"verbose": "no"}, TypeError),
    ],
)
def test_a_wrong_argument_of_a_runner_is_refused_by_name(given, error):
    with pytest.raises(error, match=f"^{next(iter(given))} must be"):
        LocalRLMRunner(**{"llm_chat_fn": model(1), **given})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"task_prompt": None}, TypeError),
        ({"task_prompt": 3}, TypeError),
        ({"context": 3}, TypeError),
        ({"model": 3}, TypeError),
        ({"timeout_s": 0}, ValueError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"timeout_s": "10"}, TypeError),
    ],
)
def test_a_wrong_argument_of_a_run_is_refused_by_name_and_nothing_is_asked(given, error):
    asked = []
    runner = LocalRLMRunner(asked.append)
    with pytest.raises(error, match=f"{next(iter(given))} must be"):
        runner.run(**{"context": "c", "task_prompt": "t", **given})
    assert asked == []


def test_a_factory_that_makes_no_backend_is_named():
    runner = LocalRLMRunner(model(1), backend_factory=lambda chat_fn, **arguments: None)
    with pytest.raises(TypeError, match="backend_factory must return a backend; NoneType"):
        runner.run("c", "root")


@pytest.mark.parametrize("context", [["a", "b"], {"a": 1}, b"ab"])
def test_the_prompt_names_the_type_of_the_context(context):
    seen = []

    def answer(messages):
        seen.extend(messages)
        return code("FINAL(type(context).__name__)")

    kind = type(context).__name__
    assert LocalRLMRunner(answer).run(context, "root").final_answer == kind
    assert f"Your context is a {kind} with" in str(seen[0]["content"])


def test_a_model_answers_turns_and_the_questions_of_code():
    """A model is a function too, and an asynchronous one; its code's questions had no answer."""
    scripted = ScriptedModel([code("FINAL([llm_query('a'), *llm_batch(['b'])])"), "A", "B"])
    assert LocalRLMRunner(scripted).run("c", "root").answer_value == ["A", "B"]


# ── backends and controller by themselves ────────────────────────────────────────────────────────


def test_a_direct_backend_asks_the_chat_function():
    backend = DirectLMBackend(lambda messages: messages[0]["content"] * 2)
    assert backend.query("ab") == "abab"
    assert backend.recursive_query("ab") == "abab"
    assert backend.query_batched([]) == []
    assert (backend.depth, backend.max_depth, backend.child_traces) == (0, 1, [])


@pytest.mark.parametrize("answer", [None, 3, b"text"])
def test_an_answer_that_is_no_text_is_named(answer):
    with pytest.raises(ModelError, match=f"returned {type(answer).__name__}, not str"):
        DirectLMBackend(lambda messages: answer).query("a")


@pytest.mark.parametrize("field", ["max_depth", "max_batch_workers", "max_children_total"])
def test_limits_of_a_backend_are_checked_when_they_are_set(field):
    with pytest.raises(TypeError, match=f"{field} must be an int"):
        BackendLimits(**{field: "1"})


def test_a_controller_refuses_a_wrong_argument_by_name():
    for given in ({"chat_fn": 3}, {"max_iterations": 0}, {"max_depth": 0}):
        for depth in (1, 2):
            arguments = {"chat_fn": str, "max_depth": depth, "max_iterations": 3, **given}
            with pytest.raises((TypeError, ValueError), match=f"{next(iter(given))} must be"):
                create_server_recursive_controller(**arguments)


def test_a_failure_in_a_batch_stays_in_its_place():
    def picky(messages, model):
        if messages[0]["content"] == "bad":
            raise ValueError("no")
        return "fine"

    backend = DirectLMBackend(picky)
    assert backend.query_batched(["a", "bad"]) == ["fine", "Error: no"]
    with pytest.raises(ValueError, match="no"):
        backend.query("bad")


def test_a_failing_listener_has_no_effect():
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

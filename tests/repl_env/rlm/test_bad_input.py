"""Errors of models, endpoints and callers that no other file tests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env.rlm import Budget, OpenAIModel, ScriptedModel
from repl_env.rlm.model_call import CallEnded
from tests.repl_env.llm.endpoint import Hang, Reply
from tests.repl_env.rlm.replies import code, tree


def test_a_missing_context_file_is_named_before_any_model_call(rlm, sandbox, tmp_path) -> None:
    model = ScriptedModel([code("FINAL(1)")])
    before = sandbox.statistics().open
    runner = rlm(model, trajectory=tmp_path / "run.jsonl")
    for given in ({"context": tmp_path / "absent"}, {"contexts": {"log": tmp_path / "absent"}}):
        with pytest.raises(FileNotFoundError, match="absent"):
            runner.run("?", **given)

    assert model.requests == []
    assert sandbox.statistics().open == before
    assert runner.run("?").final_answer == "1"  # and it left no file in the way


@pytest.mark.parametrize("seconds", ["1", True, 0, -1.0, float("nan"), float("inf")])
def test_an_invalid_time_limit_is_refused_and_no_model_is_called(rlm, seconds) -> None:
    """A run of `nan` seconds had no end."""
    model = ScriptedModel([code("FINAL(1)")])

    with pytest.raises((TypeError, ValueError), match="timeout_s must be"):
        rlm(model).run("?", timeout_s=seconds)

    assert model.requests == []


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ("['a'] * 9_999 + [5]", "int"),
        ("('a', 'b')", None),
        ("{'b', 'a'}", None),
        ("{'k': 'a', 'l': 'b'}.values()", None),
        ("{'a': 1, 'b': 2}.keys()", None),
        ("(each for each in 'ab')", None),
        ("map(str, range(2))", None),
        ("__import__('collections').deque('ab')", None),
        ("{'a': 1}", "dict"),
        ("'text'", "str"),
        ("5", "int"),
        ("[b'a']", "bytes"),
        ("[['a']]", "list"),
    ],
)
@pytest.mark.parametrize("function", ["llm_batch", "llm_query_batched", "rlm_query_batched"])
def test_a_batch_with_an_invalid_prompt_calls_no_model(rlm, function, prompts, named) -> None:
    model = tree([code(f"b = {function}({prompts})"), code("FINAL('ok')")], [code("FINAL('c')")])
    result = rlm(model).run("?")

    told = model.requests[-1].messages[-1]["content"]
    if named is None:  # any sequence of texts will do
        assert "TypeError" not in told
        assert len(model.requests) == 4  # one for each prompt
        return
    assert "TypeError" in told
    assert named in told
    assert (result.final_answer, result.usage.calls, result.error_kind) == ("ok", 2, None)


@pytest.mark.parametrize("prompt", ["5", "None", "b'x'", "['x']", "{'x': 1}"])
@pytest.mark.parametrize("function", ["llm_query", "rlm_query", "rlm_spawn"])
def test_a_prompt_that_is_no_text_is_a_type_error_of_the_cell(rlm, function, prompt) -> None:
    tried = f"try:\n    {function}({prompt})\nexcept Exception as e:\n    FINAL((str(e), repr(e)))"
    result = rlm(tree([code(tried)])).run("?")

    assert f"a prompt must be a str, not {type(eval(prompt)).__name__}" in result.final_answer
    assert "TypeError" in result.final_answer
    assert (result.usage.calls, result.error_kind) == (1, None)


@pytest.mark.parametrize("wish", ["max_depth=9", "depth=0", "budget=10**9", "account='0'"])
def test_a_child_cannot_ask_for_depth_or_budget(rlm, wish) -> None:
    asked = f"try:\n    rlm_query('x', {wish})\nexcept TypeError as e:\n    FINAL(str(e))"
    model = tree([code("FINAL(rlm_query('child'))")], [code(asked)], "plain")
    result = rlm(model).run("?")

    assert wish.partition("=")[0] in result.final_answer
    assert result.usage.children == 1


def test_a_child_budget_is_capped_by_the_remaining_budget(rlm) -> None:
    root = [code("r = rlm_query('child')\nFINAL((r, budget()['left']['calls']))")]
    child = [code("FINAL(sum(t.ok for t in llm_batch(['x'] * 50)))")]
    events = []
    result = rlm(tree(root, child), budget=Budget(calls=12), on_event=events.append).run("?")

    assert result.answer_value == ["10", 0]
    assert (result.usage.calls, result.own.calls, result.error_kind) == (12, 1, None)
    refused = [e for e in events if isinstance(e, CallEnded) and (e.error or "").find("calls") > 0]
    assert len(refused) == 40


def test_children_below_the_maximum_depth_are_plain_calls(rlm) -> None:
    deep = code("FINAL(rlm_query_batched(['a', 'b'])[1])")
    result = rlm(tree([deep], lambda request: deep, "plain"), max_depth=3).run("?")

    assert (result.final_answer, result.usage.children) == ("plain", 2 + 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_ten_megabytes_over_http_are_run_and_not_kept(rlm, endpoint, stream) -> None:
    replies = ["y" * 10_000_000, "x" * 10_000_000 + "\n" + code("FINAL(1)")]
    served = endpoint(replies)
    model = OpenAIModel("m", base_url=served.base_url, stream=stream)
    result = await rlm(model).arun("?")
    await model.close()

    assert result.final_answer == "1"
    assert sum(len(m["content"]) for m in served.requests[1].body["messages"]) < 200_000


async def test_a_call_to_a_slow_endpoint_ends_with_the_time_limit_of_the_tree(
    rlm, endpoint
) -> None:
    asked = threading.Event()

    def answer(request):
        if request.body["messages"][0]["role"] == "system":
            return code("answer['content'] = 'draft'\nllm_batch(['a', 'b', 'c'])")
        asked.set()
        return Hang()

    served = endpoint(answer)
    for seconds in (2.0, 20.0, 120.0):  # until there was time enough to get there
        model = OpenAIModel("m", base_url=served.base_url)
        runner = rlm(model, budget=Budget(seconds=seconds))
        result = await runner.arun("?", expected_answer="draft")
        idle = await asyncio.to_thread(served.wait_idle, 60)
        await model.close()
        if asked.is_set():
            break

    assert (result.final_answer, result.stop_reason, result.error_kind) == (
        "draft", "budget", "budget",
    )  # fmt: skip
    assert (asked.is_set(), idle) == (True, True)


async def test_an_endpoint_that_does_not_answer_is_reported(rlm, endpoint) -> None:
    empty = Reply("", usage={"prompt_tokens": 3, "completion_tokens": 0})
    served = endpoint([empty, Reply(code("FINAL(1)"))])
    model = OpenAIModel("m", base_url=served.base_url)
    result = await rlm(model).arun("?")
    await model.close()

    assert result.final_answer == "1"
    assert "no code block" in served.requests[1].prompt

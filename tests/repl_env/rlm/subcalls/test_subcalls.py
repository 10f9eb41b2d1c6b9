"""Sub-calls reach the functions that they were given, once, and failures stay in their place."""

import asyncio
import functools
import threading

import pytest

from repl_env.llm.spec import LLM
from repl_env.rlm import Budget, Price
from repl_env.rlm.answerers import NAMES, SubcallSettings, session_functions
from repl_env.rlm.providers import GivenProvider


class Calls:
    """The functions of one episode as its code sees them, and its suspicious failures."""

    def __init__(self, settings=None, **given):
        provider = GivenProvider(**given)
        settings = settings or SubcallSettings()
        self.configured = provider.names(settings)
        self.subcalls = provider.begin(settings, None)
        self.functions = session_functions(self.subcalls)

    @property
    def suspected(self):
        """The kinds of calls that may have failed by no fault of the code."""
        return self.subcalls.suspected_failures(out_of_time=False)

    def __getattr__(self, name):
        offer = self.functions[name]

        def call(*arguments, **named):
            function = getattr(offer, "function", offer)
            told = function(*arguments, **named)
            told = asyncio.run(told) if asyncio.iscoroutine(told) else told
            return [each["text"] for each in told] if isinstance(told, list) else told["text"]

        return call


def test_a_function_with_one_argument_gets_the_prompt():
    assert Calls(llm_query_fn=lambda prompt: f"<{prompt}>").llm_query("a", "m") == "<a>"


def test_a_function_with_two_arguments_gets_the_model_too():
    calls = Calls(llm_query_fn=lambda prompt, model: f"{prompt}@{model}")
    assert calls.llm_query("a") == "a@None"
    assert calls.llm_query("a", model="m") == "a@m"


def test_the_model_of_the_episode_is_the_default():
    settings = SubcallSettings(LLM(model="small"))
    calls = Calls(settings, llm_query_fn=lambda prompt, model=None: str(model))
    assert calls.llm_query("a") == "small"
    assert calls.llm_query("a", "big") == "big"


def test_partials_and_objects_are_distinguished_by_signature_too():
    class Model:
        def __call__(self, prompt):
            return f"[{prompt}]"

    assert Calls(llm_query_fn=Model()).llm_query("a", "m") == "[a]"
    joined = functools.partial(lambda tag, prompt, model: f"{tag}{prompt}{model}", "t")
    assert Calls(llm_query_fn=joined).llm_query("a", "m") == "tam"


def test_a_type_error_inside_a_function_does_not_call_it_again():
    asked = []

    def broken(prompt, model):
        asked.append((prompt, model))
        raise TypeError("inside")

    calls = Calls(llm_query_fn=broken)
    assert calls.llm_query("a", "m") == "Error: TypeError: inside"
    assert asked == [("a", "m")]
    assert not calls.suspected


def test_every_function_exists_and_reports_when_it_is_not_configured():
    calls = Calls()
    assert set(calls.functions) == set(NAMES)
    assert calls.subcalls is None
    assert calls.configured == frozenset()
    for name in NAMES:
        with pytest.raises(RuntimeError, match=f"{name} is not configured"):
            getattr(calls, name)("a")


def test_recursive_calls_fall_back_to_plain_ones():
    calls = Calls(llm_query_fn=str.upper)
    assert calls.rlm_query("a") == "A"
    assert calls.rlm_query_batched(["a", "b"]) == ["A", "B"]
    assert calls.configured == {*NAMES, "budget"}


def test_recursive_functions_go_before_plain_ones():
    calls = Calls(
        llm_query_fn=lambda p: "plain",
        llm_batch_fn=lambda ps: ["plain"] * len(ps),
        subcall_fn=lambda p, m: "deep",
    )
    assert calls.llm_query("a") == "plain"
    assert calls.rlm_query("a") == "deep"
    assert calls.llm_batch(["a", "b"]) == ["plain"] * 2
    assert calls.rlm_query_batched(["a", "b"]) == ["deep"] * 2


def test_a_batch_of_single_calls_keeps_its_order_and_runs_at_once():
    together = threading.Barrier(3, timeout=60)

    def wait_for_the_others(prompt):
        together.wait()
        return prompt

    calls = Calls(llm_query_fn=wait_for_the_others)
    assert calls.llm_query_batched(["a", "b", "c"]) == ["a", "b", "c"]
    assert calls.llm_query_batched([]) == []


def test_a_failure_in_a_batch_stays_in_its_place():
    def picky(prompt):
        if prompt == "bad":
            raise TimeoutError("no answer")
        return prompt

    calls = Calls(llm_query_fn=picky)
    answers = calls.llm_query_batched(["a", "bad", "c"])
    assert answers == ["a", "Error: timeout: no answer", "c"]


@pytest.mark.parametrize("answers", [["one"], "ab", ["a", "b", "c"]])
def test_a_batch_function_that_loses_answers_fails_as_a_whole(answers):
    calls = Calls(llm_batch_fn=lambda prompts: answers)
    found = calls.llm_query_batched(["a", "b"])
    assert len(found) == 2
    assert all(answer.startswith("Error: ") for answer in found)


def test_asynchronous_functions_are_awaited_and_mapped_at_once():
    async def ask(prompt, model):
        return f"{prompt}{model}"

    calls = Calls(llm_query_fn=ask, subcall_batch_fn=lambda ps: ps)
    assert calls.llm_query("a", "m") == "am"
    assert calls.llm_query_batched(["a", "b"], "m") == ["am", "bm"]
    assert calls.rlm_query_batched(["x"]) == ["x"]


def test_an_asynchronous_failure_is_a_text_as_well():
    async def fail(prompt):
        raise ValueError("no")

    calls = Calls(llm_query_fn=fail)
    assert calls.llm_query("a") == "Error: ValueError: no"


@pytest.mark.parametrize(
    ("name", "argument"), [("llm_query", 5), ("llm_batch", "text"), ("llm_batch", [1])]
)
def test_wrong_arguments_raise_in_the_calling_code(name, argument):
    calls = Calls(llm_query_fn=str.upper)
    with pytest.raises(TypeError, match="must be a"):
        getattr(calls, name)(argument)
    assert not calls.suspected


def test_an_uncallable_function_is_refused_by_name():
    with pytest.raises(TypeError, match="llm_batch_fn must be callable"):
        GivenProvider(llm_batch_fn="model")


def test_sub_calls_are_counted():
    calls = Calls(llm_query_fn=str.upper, llm_batch_fn=list, subcall_fn=lambda p: 1 / 0)
    calls.llm_query("a")
    calls.llm_batch(["b", "c"])
    calls.rlm_query("d")
    total = calls.subcalls.account.total
    assert (total.calls, total.failed_calls) == (4, 1)
    assert total.estimated_tokens == total.input_tokens + total.output_tokens > 0


def test_secrets_are_not_in_the_repr():
    shown = repr(SubcallSettings(LLM("m", api_key="sk-1", headers={"X": "sk-2"})))
    assert "sk-" not in shown
    assert "'m'" in shown


def test_a_model_is_given_in_one_of_two_ways():
    assert LLM.of(None, "m", "token") == LLM(model="m", api_key="token")
    with pytest.raises(TypeError, match="llm_model"):
        LLM.of(LLM(), "m", None)


@pytest.mark.parametrize("budget", [Budget(output_tokens=90), Budget(usd=1.0)])
async def test_a_batch_shares_a_budget_without_deadlock(budget):
    provider = GivenProvider(llm_batch_fn=list, budget=budget, prices={"m": Price(1.0, 1.0)})
    settings = SubcallSettings(LLM(model="m"))
    calling = provider.begin(settings, None)
    ask = calling.functions()["llm_batch"].function
    told = await asyncio.wait_for(ask(["a", "b", "c"]), 60)
    assert [each["text"] for each in told] == ["a", "b", "c"]
    assert calling.account.total.calls == 3

"""Runs and endpoint models report invalid arguments when they are made."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import numpy
import pytest

from repl_env.llm.spec import LLM
from repl_env.rlm import RLM, Budget, HFModel, OpenAIModel, RunConfig, ScriptedModel

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"isolation": "foo"}, ValueError, "isolation"),
        ({"require": "foo"}, ValueError, "require"),
        ({"preload": ["a b"]}, ValueError, "preload"),
        ({"tools": [print]}, TypeError, "tools"),
        ({"tools": {"a b": print}, "environment": print}, ValueError, "a b"),
        ({"budget": 0}, TypeError, "budget"),
        ({"prices": 5}, TypeError, "prices"),
        ({"prices": {"m": 3}}, TypeError, "prices.*'m'"),
        ({"trajectory": 3}, TypeError, "trajectory"),
        ({"on_event": 3}, TypeError, "on_event"),
        ({"on_event": asyncio.sleep}, TypeError, "on_event must be a plain function"),
        ({"system_prompt": 3}, TypeError, "system_prompt"),
        ({"run_config": {}}, TypeError, "run_config"),
        ({"gate": 3}, TypeError, "gate"),
        ({"blocks": "some"}, ValueError, "blocks"),
        ({"max_iterations": 0}, ValueError, "max_iterations"),
        ({"sub_model": LLM("m", "models.example")}, ValueError, "base_url"),
        ({"sub_model": OpenAIModel}, TypeError, "sub_model must be a model, not the class OpenAI"),
        (
            {"sub_model": lambda: "x"},
            TypeError,
            r"sub_model must take \(messages\) .*, not \(\)",
        ),
        ({"sub_model": lambda *, messages: "x"}, TypeError, "sub_model must take"),
    ],
)
def test_a_wrong_argument_of_runs_is_refused_by_name(given, error, named) -> None:
    with pytest.raises(error, match=named):
        RLM(ScriptedModel([]), **given)


@pytest.mark.parametrize("function", [str, dict, print, lambda m: "x", lambda m, n=1, *, o=2: "x"])
def test_a_function_that_may_take_messages_is_no_error(function) -> None:
    assert "RLM model" in repr(RLM(function))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"script": "FINAL(1)"}, TypeError),
        ({"script": None}, TypeError),
        ({"script": 3}, TypeError),
        ({"delay": "1"}, TypeError),
        ({"delay": -1}, ValueError),
        ({"delay": float("nan")}, ValueError),
    ],
)
def test_a_wrong_argument_of_a_script_is_refused_by_name(given, error) -> None:
    """One text was taken for answers of one character each."""
    with pytest.raises(error, match=f"{next(iter(given))} must be"):
        ScriptedModel(**{"script": [], **given})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_iterations": 0}, ValueError),
        ({"blocks": "some"}, ValueError),
        ({"max_outcome": "10"}, TypeError),
        ({"max_prompt": 0}, ValueError),
        ({"measure": 3}, TypeError),
        ({"timeout_s": 0}, ValueError),
        ({"max_output_tokens": -1}, ValueError),
    ],
)
def test_a_wrong_field_of_a_run_config_is_refused_by_name(given, error) -> None:
    with pytest.raises(error, match=next(iter(given))):
        RunConfig(**given)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"model": None}, TypeError),
        ({"model": ""}, ValueError),
        ({"base_url": 3}, TypeError),
        ({"base_url": "models.example/v1"}, ValueError),
        ({"base_url": "http://[1/v1"}, ValueError),
        ({"headers": ["a"]}, TypeError),
        ({"headers": {"a": 3}}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": "10"}, TypeError),
        ({"max_retries": -1}, ValueError),
        ({"max_retries": 1.5}, TypeError),
    ],
)
@pytest.mark.parametrize("kind", [OpenAIModel, HFModel])
def test_a_wrong_argument_of_a_model_is_refused_by_name(kind, given, error) -> None:
    with pytest.raises(error, match=next(iter(given))):
        kind(**{"model": "m", "base_url": URL, **given})


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        (OpenAIModel, {"api_key": 1234567}, TypeError),
        (OpenAIModel, {"max_tokens_field": "tokens"}, ValueError),
        (HFModel, {"token": 1234567}, TypeError),
        (HFModel, {"provider": 1234567}, TypeError),
    ],
)
def test_arguments_of_one_model_alone_are_checked_too(kind, given, error) -> None:
    with pytest.raises(error, match=next(iter(given))) as raised:
        kind("m", base_url=URL, **given)
    assert "1234567" not in str(raised.value)


def test_limits_may_be_of_any_kind_of_number():
    budget = Budget(calls=numpy.int64(3), usd=Decimal("0.5"), seconds=numpy.float32(2))
    assert budget == Budget(calls=3, usd=0.5, seconds=2.0)
    assert [type(each) for each in (budget.calls, budget.usd, budget.seconds)] == [
        int,
        float,
        float,
    ]
    run_config = RunConfig(max_iterations=numpy.int64(3), timeout_s=numpy.float32(2))
    assert [type(each) for each in (run_config.max_iterations, run_config.timeout_s)] == [
        int,
        float,
    ]

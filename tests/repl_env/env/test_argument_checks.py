"""An environment reports invalid arguments when it is made, not at the first episode."""

from __future__ import annotations

import pytest

from repl_env import REPLEnv, REPLEnvironment, REPLVectorEnv
from repl_env.llm.spec import LLM

_WRONG = [
    ({"isolation": "foo"}, ValueError, "isolation"),
    ({"isolation": None}, ValueError, "isolation"),
    ({"require": "foo"}, ValueError, "require"),
    ({"isolation": "confined", "require": "jailed"}, ValueError, "excludes"),
    ({"preload": [3]}, TypeError, "preload"),
    ({"preload": ["a b"]}, ValueError, "a b"),
    ({"preload": [""]}, ValueError, "preload"),
    ({"limits": 5}, TypeError, "limits"),
    ({"policy": "lint"}, TypeError, "policy"),
    ({"tools": [print]}, TypeError, "tools"),
    ({"llm_query_fn": lambda: ""}, TypeError, r"llm_query_fn must take \(prompt\)"),
    ({"llm_batch_fn": lambda a, b, c: ""}, TypeError, r"llm_batch_fn must take \(prompts\)"),
    ({"budget": {"calls": 1}}, TypeError, "budget"),
    ({"budget": 0}, TypeError, "budget"),
    ({"prices": 5}, TypeError, "prices"),
    ({"prices": {"m": (1, 2)}}, TypeError, "prices.*'m'"),
    ({"prices": {3: None}}, TypeError, "prices: 3"),
]


@pytest.mark.parametrize(("given", "error", "named"), _WRONG)
def test_a_wrong_argument_is_refused_by_name(given, error, named) -> None:
    with pytest.raises(error, match=named):
        REPLEnvironment(**given)
    with pytest.raises(error, match=named):
        REPLVectorEnv(2, **given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"context": 3}, "context must be"),
        ({"task_prompt": b"?"}, "task_prompt"),
        ({"transform": "upper"}, "transform"),
    ],
)
def test_arguments_of_the_environment_alone_are_refused_too(given, named) -> None:
    with pytest.raises(TypeError, match=named):
        REPLEnvironment(**given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"headers": 3}, "headers"),
        ({"headers": {3: "a"}}, "headers: a name"),
        ({"tls": "certificates.pem"}, "tls"),
    ],
)
def test_a_client_refuses_what_it_could_not_send(given, named) -> None:
    with pytest.raises(TypeError, match=named):
        REPLEnv("http://127.0.0.1:8000", **given)


@pytest.mark.parametrize("field", ["model", "base_url", "api_key", "headers", "sampling"])
def test_a_field_of_an_llm_that_is_of_another_kind_is_named_without_its_value(field) -> None:
    with pytest.raises(TypeError, match=f"llm.{field}") as raised:
        LLM(**{field: 1234567})
    assert "1234567" not in str(raised.value)

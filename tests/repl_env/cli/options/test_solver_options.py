"""From options to a solver: the options that results depend on, and secrets that settings must not
show.
"""

from __future__ import annotations

from typing import Any

import pytest

from repl_env.cli.evaluate import rlm_solver
from repl_env.cli.model_options import BudgetOptions, ModelOptions
from repl_env.cli.options import Isolation, LimitOptions, Require, SessionOptions
from repl_env.cli.run import Blocks, RunOptions
from repl_env.llm import factory
from repl_env.llm.spec import LLM
from repl_env.rlm import ScriptedModel

KEYS = {"OPENAI_API_KEY": "key-of-openai", "HF_TOKEN": "token-of-hf"}
MODEL = ModelOptions("m", "http://127.0.0.1:1/v1")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[LLM]:
    """The models that a stand-in for endpoints was asked for."""
    asked: list[LLM] = []

    def model_of(llm: LLM) -> ScriptedModel:
        asked.append(llm)
        return ScriptedModel([])

    monkeypatch.setattr(factory, "model_of", model_of)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return asked


def settings(model: ModelOptions = MODEL, **options: Any) -> dict[str, Any]:
    return rlm_solver(model, RunOptions(**options))[1]


def test_both_models_use_the_endpoint_of_the_environment(
    made: list[LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    found = settings(model=ModelOptions("m"), sub_model="s")

    assert [(llm.model, llm.base_url, llm.api_key) for llm in made] == [
        ("m", "http://127.0.0.1:9/v1", "key-of-openai"),
        ("s", "http://127.0.0.1:9/v1", "key-of-openai"),
    ]
    assert found["base_url"] == "http://127.0.0.1:9/v1"


def test_settings_have_no_secrets() -> None:
    found = settings(model=ModelOptions("m", "https://user:pass@host:1/v1?key=hidden"))

    assert found["base_url"] == "https://host:1/v1"
    for secret in ("pass", "hidden", *KEYS.values()):
        assert secret not in str(found)


def test_results_depend_on_limits_and_not_on_the_tier() -> None:
    assert (
        settings(session=SessionOptions(isolation=Isolation.JAILED, require=Require.CONFINED))
        == settings()
    )
    for changes in (
        {"max_depth": 3},
        {"budget": BudgetOptions(budget_calls=3)},
        {"sub_model": "s"},
        {"blocks": Blocks.FIRST},
        {"budget": BudgetOptions(price=["m=1:2"])},
        {"session": SessionOptions(preload=["json"])},
        {"limits": LimitOptions(timeout=5)},
    ):
        assert settings(**changes) != settings()

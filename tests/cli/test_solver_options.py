"""From options to models: where a key goes, what a result depends on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from repl_env.cli.solver_options import ModelChoice, model_of, rlm_solver
from repl_env.llm import LLM
from repl_env.rlm import Budget, ModelRequest, ScriptedModel

KEYS = {"OPENAI_API_KEY": "key-of-openai", "HF_TOKEN": "token-of-hf"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LLM]:
    """Which models stand-ins for endpoints and runner were asked for."""
    asked: list[LLM] = []

    def model_of(llm: LLM) -> ScriptedModel:
        asked.append(llm)
        return ScriptedModel([])

    endpoints: Any = ModuleType("repl_env.rlm.endpoints")
    endpoints.model_of = model_of
    for module in (endpoints, ModuleType("repl_env.rlm.runner")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def choice(**changes: Any) -> ModelChoice:
    fields: dict[str, Any] = {
        "model": "m",
        "sub_model": None,
        "base_url": None,
        "budget": Budget(),
        "max_iterations": 30,
        "max_depth": 2,
        "isolation": None,
        "require": None,
    }
    return ModelChoice(**{**fields, **changes})


@pytest.mark.parametrize(
    ("base_url", "key"), [("http://127.0.0.1:1", "key-of-openai"), (None, "token-of-hf")]
)
def test_a_key_goes_only_where_it_belongs(made: list[LLM], base_url: str | None, key: str) -> None:
    model_of("m", base_url, "--model", KEYS)

    assert [(llm.model, llm.base_url, llm.api_key) for llm in made] == [("m", base_url, key)]


def test_an_endpoint_of_the_environment_is_used(
    made: list[LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    _, settings = rlm_solver(choice(sub_model="s"))

    assert [(llm.model, llm.base_url) for llm in made] == [
        ("m", "http://127.0.0.1:9/v1"),
        ("s", "http://127.0.0.1:9/v1"),
    ]
    assert settings["base_url"] == "http://127.0.0.1:9/v1"


def test_settings_have_no_secrets(made: list[LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    _, settings = rlm_solver(choice(base_url="https://user:pass@host:1/v1?key=hidden"))

    assert settings["base_url"] == "https://host:1/v1"
    for secret in ("pass", "hidden", *KEYS.values()):
        assert secret not in str(settings)


def test_results_depend_on_bounds_and_not_on_what_holds_the_code(made: list[LLM]) -> None:
    def settings(**changes: Any) -> dict[str, Any]:
        return rlm_solver(choice(**changes))[1]

    assert settings(isolation="jailed", require="confined") == settings()
    for changes in ({"max_depth": 3}, {"budget": Budget(usd=1.0)}, {"sub_model": "s"}):
        assert settings(**changes) != settings()


async def test_a_script_is_a_model_and_its_text_matters(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    digests = set()
    for text in ("one", "two"):
        file.write_text(f"def answer(request):\n    return {text!r}\n")
        model, digest = model_of(f"script:{file}:answer", None, "--model", {})
        completion = await model.complete(
            ModelRequest(messages=[{"role": "user", "content": "hello"}])
        )
        assert completion.text == text
        digests.add(digest)

    assert len(digests) == 2


def test_a_library_that_is_missing_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def model_of_none(llm: LLM) -> None:
        raise ImportError("pip install 'repl-env[openai]'")

    endpoints: Any = ModuleType("repl_env.rlm.endpoints")
    endpoints.model_of = model_of_none
    monkeypatch.setitem(sys.modules, endpoints.__name__, endpoints)
    with pytest.raises(typer.BadParameter, match=r"repl-env\[openai\]"):
        model_of("m", None, "--model", {})

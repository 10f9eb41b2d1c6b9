"""The model that the settings of an episode name."""

from __future__ import annotations

import builtins
import sys

import pytest

from repl_env.llm.spec import LLM
from repl_env.rlm import HFModel, ModelRequest, OpenAIModel, model_of
from tests.test_imports import loaded_by

ASK = ModelRequest(messages=[{"role": "user", "content": "how many"}])
LIBRARIES = {"openai", "huggingface_hub", "httpx", "httpx2", "aiohttp"}


def test_without_settings_there_is_no_model() -> None:
    assert model_of(LLM()) is None
    assert model_of(LLM(sampling={"top_p": 1.0})) is None


@pytest.mark.parametrize(
    ("llm", "name"),
    [
        (LLM("org/name"), "org/name"),
        (LLM(api_key="hf_x"), "Qwen/Qwen3.5-9B"),
        (LLM("org/name", api_key="hf_x"), "org/name"),
    ],
)
def test_without_an_endpoint_the_model_is_of_hugging_face(llm: LLM, name: str) -> None:
    """OpenEnv's `llm_model` and `hf_token` have this meaning."""
    model = model_of(llm)

    assert isinstance(model, HFModel)
    assert model.name == name


async def test_an_endpoint_gets_all_its_settings(endpoint) -> None:
    served = endpoint("yes")
    model = model_of(LLM("m", served.base_url, "the-key", {"X-A": "b"}, {"top_p": 0.5}))
    answer = await model.complete(ASK)
    await model.close()

    assert isinstance(model, OpenAIModel)
    assert answer.text == "yes"
    assert served.requests[0].headers["authorization"] == "Bearer the-key"
    assert served.requests[0].headers["x-a"] == "b"
    assert served.requests[0].body["top_p"] == 0.5


def test_an_endpoint_needs_a_model_name() -> None:
    with pytest.raises(ValueError, match=r"llm\.model is missing"):
        model_of(LLM(base_url="http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    ("llm", "library", "extra"),
    [
        (LLM("m", "http://127.0.0.1:9/v1"), "openai", r"repl-env\[openai\]"),
        (LLM("m"), "huggingface_hub", r"repl-env\[hf\]"),
    ],
)
def test_a_missing_library_is_named(monkeypatch, llm: LLM, library: str, extra: str) -> None:
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=f"pip install '{extra}'"):
        model_of(llm)


@pytest.mark.parametrize("module", ["repl_env", "repl_env.rlm", "repl_env.llm.factory"])
def test_no_library_is_loaded_before_a_model_needs_it(module: str) -> None:
    modules = loaded_by(module, "")

    assert module in modules
    assert not modules & LIBRARIES


def test_the_modules_of_models_load_no_library_by_themselves() -> None:
    for module in ("repl_env.llm.openai", "repl_env.llm.hf"):
        assert not loaded_by(module, "") & LIBRARIES

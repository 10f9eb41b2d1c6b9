"""The model that options and environment variables select, and the hosts that get a key."""

from __future__ import annotations

import asyncio
import sys

import pytest
import typer

from repl_env.cli.model_options import (
    ModelOptions,
    SamplingArguments,
    digest_of,
    llm_from,
    model_from,
)
from repl_env.errors import ModelError
from repl_env.llm import factory
from repl_env.llm.base import ModelRequest
from repl_env.llm.spec import OPENAI
from repl_env.rlm.replay import ScriptedModel
from tests.repl_env.llm.endpoint import Status

KEYS = {"OPENAI_API_KEY": "sk-openai", "HF_TOKEN": "hf-token"}
HUB = "https://router.huggingface.co/v1"
OWN = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("options", "environ", "base_url", "key"),
    [
        (ModelOptions("gpt-x"), KEYS, OPENAI, "sk-openai"),
        (ModelOptions("owner/name"), KEYS, None, "hf-token"),
        (ModelOptions("owner/name", OWN), KEYS, OWN, "sk-openai"),
        (ModelOptions("owner/name", HUB), KEYS, HUB, "hf-token"),
        (ModelOptions("name", OWN), {}, OWN, None),
        (ModelOptions("name"), {"OPENAI_BASE_URL": OWN}, OWN, None),
        (ModelOptions("name", HUB), {"OPENAI_BASE_URL": OWN, **KEYS}, HUB, "hf-token"),
        (ModelOptions("name", OWN, "MINE"), {"MINE": "k", **KEYS}, OWN, "k"),
        (ModelOptions("owner/name", None, "MINE"), {"MINE": "k"}, None, "k"),
    ],
)
def test_a_key_is_sent_only_to_its_own_service(options, environ, base_url, key):
    llm = llm_from(options, environ)

    assert (llm.model, llm.base_url, llm.api_key) == (options.model, base_url, key)


def test_the_token_of_hugging_face_is_not_sent_to_look_alike_hosts():
    llm = llm_from(ModelOptions("m", "https://huggingface.co.evil.example/v1"), KEYS)

    assert llm.api_key == "sk-openai"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (ModelOptions("gpt-x"), "OPENAI_API_KEY is not set"),
        (ModelOptions("owner/name"), "HF_TOKEN is not set"),
        (ModelOptions("m", OWN, "MINE"), "MINE is not set"),
        (ModelOptions(" "), "must name a model"),
    ],
)
def test_a_missing_option_is_named(options, says):
    with pytest.raises(typer.BadParameter, match=says):
        llm_from(options, {})


@pytest.mark.parametrize(
    ("name", "base_url", "limit"),
    [("gpt-x", None, "max_completion_tokens"), ("m", OWN, "max_tokens")],
)
def test_options_of_sampling_reach_the_model(name, base_url, limit):
    sampling = SamplingArguments(
        temperature=0.0, top_p=0.5, seed=7, max_tokens=96,
        model_arg=["top_k=20", 'stop=["a", "b"]', "reasoning_effort=low"],
    )  # fmt: skip
    llm = llm_from(ModelOptions(name, base_url, None, sampling), KEYS)
    assert llm.sampling == {
        "temperature": 0.0, "top_p": 0.5, "seed": 7, limit: 96,
        "top_k": 20, "stop": ["a", "b"], "reasoning_effort": "low",
    }  # fmt: skip
    assert llm_from(ModelOptions(name, base_url), KEYS).sampling == {}


@pytest.mark.parametrize("retries", [0, 1])
async def test_retries_and_the_time_limit_of_an_endpoint_are_arguments(endpoint, retries):
    busy = Status(429, "slow down", {"retry-after-ms": "5"})
    served = endpoint([busy, busy, "ok"])
    sampling = SamplingArguments(model_arg=[f"max_retries={retries}", "timeout=60", "top_k=20"])
    model = model_from(ModelOptions("m", served.base_url, sampling=sampling), environ={})
    with pytest.raises(ModelError, match="slow down"):
        await model.complete(ModelRequest(messages=[{"role": "user", "content": "?"}]))
    await model.close()
    assert [(asked.body["top_k"], "timeout" in asked.body) for asked in served.requests] == [
        (20, False)
    ] * (1 + retries)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["top_k"], "'top_k' must be K=V"),
        (["=3"], "'=3' must be K=V"),
        (["temperature=1"], "temperature is given twice"),
        (["top_k=1", "top_k=2"], "top_k is given twice"),
    ],
)
def test_a_wrong_argument_of_a_model_is_named(given, says):
    options = ModelOptions("m", OWN, None, SamplingArguments(temperature=0.5, model_arg=given))
    with pytest.raises(typer.BadParameter, match=says):
        llm_from(options, {})


def test_a_script_takes_no_options_of_sampling(tmp_path):
    (tmp_path / "model.py").write_text("def reply(request):\n    return 'x'\n")
    options = ModelOptions(f"script:{tmp_path}/model.py:reply", sampling=SamplingArguments(seed=1))
    with pytest.raises(typer.BadParameter, match="a script samples by itself, and takes no seed"):
        model_from(options, environ={})
    assert model_from(options, "--sub-model", environ={}).name == "model:reply"


def test_a_script_imports_files_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "only_beside_it.py").write_text("TEXT = 'beside'\n")
    file = tmp_path / "model.py"
    file.write_text(
        "import only_beside_it\n\ndef reply(request):\n    return only_beside_it.TEXT\n"
    )
    model = model_from(ModelOptions(f"script:{file}:reply"), environ={})
    request = ModelRequest(messages=[{"role": "user", "content": "hi"}])
    assert asyncio.run(model.complete(request)).text == "beside"


@pytest.mark.parametrize(
    ("model", "says"),
    [("./no-such-folder", "there is no such folder"), ("{tmp}", "no config.json in it")],
)
def test_a_folder_without_a_model_is_an_error(tmp_path, model, says):
    with pytest.raises(typer.BadParameter, match=says):
        model_from(ModelOptions(model.format(tmp=tmp_path)), environ=KEYS)


def test_an_endpoint_is_made_of_the_options(monkeypatch):
    monkeypatch.setattr(factory, "model_of", lambda llm: ScriptedModel([], name=llm.base_url))

    assert model_from(ModelOptions("m", OWN), environ=KEYS).name == OWN


def test_a_missing_library_is_named_and_exits_5(monkeypatch, capsys):
    def missing(llm):
        raise ImportError("pip install 'repl-env[openai]'")

    monkeypatch.setattr(factory, "model_of", missing)
    with pytest.raises(typer.Exit) as left:
        model_from(ModelOptions("m", OWN), environ=KEYS)

    assert left.value.exit_code == 5
    assert "repl-env[openai]" in capsys.readouterr().err


def test_a_function_of_a_file_is_a_model(tmp_path):
    file = tmp_path / "answers.py"
    file.write_text("def reply(request):\n    return request.messages[0]['content'].upper()\n")
    model = model_from(ModelOptions(f"script:{file}:reply"), environ={})
    request = ModelRequest(messages=[{"role": "user", "content": "hi"}])

    assert asyncio.run(model.complete(request)).text == "HI"
    assert model.name == "answers:reply"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("script:{file}", "is not of the form"),
        ("script:{tmp}/none.py:reply", "there is no file"),
        ("script:{file}:other", "has no function 'other'"),
        ("script:{file}:number", "is int, not a function"),
        ("script:{broken}:reply", "ZeroDivisionError: division by zero"),
        ("script:{text}:reply", "ModuleNotFoundError"),
    ],
)
def test_an_invalid_script_is_an_error_with_its_reason(tmp_path, model, says):
    (tmp_path / "ok.py").write_text("number = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "text.txt").write_text("reply\n")
    paths = {"file": "ok.py", "broken": "broken.py", "text": "text.txt"}
    named = {name: str(tmp_path / path) for name, path in paths.items()}

    with pytest.raises(typer.BadParameter, match=says) as raised:
        model_from(ModelOptions(model.format(tmp=tmp_path, **named)), "--sub-model", {})
    assert raised.value.param_hint in ("--sub-model", "'--sub-model'")


def test_the_digest_of_a_script_changes_with_its_text(tmp_path):
    file = tmp_path / "script.py"
    digests = set()
    for text in ("one", "two"):
        file.write_text(f"def answer(request):\n    return {text!r}\n")
        digests.add(digest_of(f"script:{file}:answer"))

    assert len(digests) == 2
    assert digest_of("gpt-x") == digest_of(None) == ""

"""Loading a local model: from a folder, from the Hub, and bad arguments."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import typer

from repl_env.cli.model_options import ModelOptions, SamplingArguments, model_from
from repl_env.rlm import TransformersModel
from tests.repl_env.environment_internals import tokenizer_of, weights_of
from tests.repl_env.llm.local_models import tiny_model
from tests.repl_env.llm.local_models.model_requests import ask


async def test_a_folder_is_loaded_with_its_tokenizer_and_template(make, weights, words, tmp_path):
    weights.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)

    loaded = TransformersModel(
        tmp_path, device="cpu", dtype=torch.float32, max_new_tokens=12, local_files_only=True
    )

    assert loaded.name == str(tmp_path)
    here, there = await ask(make(batch_size=1)), await ask(loaded)
    assert (here.text, here.usage) == (there.text, there.usage)


@pytest.mark.parametrize(
    ("given", "environment", "used"),
    [(None, None, False), (None, "env", "env"), ("own", "env", "own")],
)
def test_the_hub_is_asked_with_the_token_given_or_named_and_with_no_stored_login(
    weights, words, monkeypatch, given, environment, used
):
    asked = []

    def from_pretrained(name, **arguments):
        asked.append((name, arguments["token"], arguments["trust_remote_code"]))
        return weights

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", from_pretrained)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if environment:
        monkeypatch.setenv("HF_TOKEN", environment)

    model = TransformersModel("some/model", words, token=given, device="cpu")

    assert asked == [("some/model", used, False)]
    assert model.name == "some/model"


def test_a_token_is_not_stored(weights, words, tmp_path):
    weights.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)

    model = TransformersModel(tmp_path, token="hf_secret", device="cpu", local_files_only=True)

    held = [
        vars(model),
        vars(tokenizer_of(model)),
        weights_of(model).config,
        weights_of(model).generation_config,
    ]
    assert tokenizer_of(model).init_kwargs
    assert "hf_secret" not in repr(held)
    assert "hf_secret" not in repr(vars(weights_of(model)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_wait": -1}, "batch_wait"),
    ],
)
def test_a_bad_argument_is_named(make, arguments, told):
    with pytest.raises((ValueError, TypeError), match=told):
        make(**arguments)


def test_weights_that_are_no_chat_model_are_refused(weights, words, tmp_path):
    with pytest.raises(ValueError, match="chat template"):
        TransformersModel(weights, tiny_model.tokenizer(None))
    with pytest.raises(ValueError, match="tokenizer must be given"):
        TransformersModel(weights)
    with pytest.raises(TypeError, match="model must be"):
        TransformersModel(3, words)
    with pytest.raises((OSError, ValueError)):
        TransformersModel(tmp_path, words, local_files_only=True)
    weights.config.is_encoder_decoder = True
    with pytest.raises(ValueError, match="continue its prompt"):
        TransformersModel(weights, words)


def test_no_library_is_loaded_before_a_model_is_made():
    program = (
        "import sys, repl_env.llm.transformers\n"
        "import repl_env.rlm.samples\n"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_the_command_line_names_a_folder_with_its_sampling(weights, words, tmp_path):
    weights.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    sampling = SamplingArguments(
        temperature=0.0, max_tokens=5, model_arg=["device=cpu", "dtype=float32"]
    )

    model = model_from(ModelOptions(str(tmp_path), sampling=sampling), environ={})
    answer = await ask(model)
    assert model.name == str(tmp_path)
    assert answer.usage.output_tokens == 5
    await model.close()

    wrong = SamplingArguments(model_arg=["no_such_argument=1"])
    with pytest.raises(typer.BadParameter, match="no_such_argument"):
        model_from(ModelOptions(str(tmp_path), sampling=wrong), environ={})

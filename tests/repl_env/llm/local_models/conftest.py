"""A tiny model with random weights, offline."""

from __future__ import annotations

import asyncio

import pytest

from repl_env.rlm import TransformersModel
from tests.repl_env.llm.local_models import tiny_model


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def words():
    return tiny_model.tokenizer()


@pytest.fixture
def weights(words):
    return tiny_model.model(words)


@pytest.fixture
def make(weights, words):
    """Models on the one set of weights; closed after the test."""
    made = []

    def new(**arguments):
        settings = {"max_new_tokens": 12, "batch_wait": 60.0, **arguments}
        made.append(TransformersModel(weights, words, **settings))
        return made[-1]

    yield new
    for model in made:
        asyncio.run(model.close())

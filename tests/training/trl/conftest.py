"""These tests run where TRL is installed: `make test-training`."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from tests.training import library_warnings

HERE = find_spec("trl") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of the trainers about themselves; warnings of this project are errors."""
    if HERE:
        library_warnings.ignore(config)


@pytest.fixture(scope="session")
def texts():
    """The training text of the tokenizer."""
    return ["```python\nprint(context)\nFINAL(len(context.split()))\n```", "How many words?"] * 3


@pytest.fixture
def tokenizer(texts):
    """A byte-level tokenizer of some 300 tokens; its ChatML template knows no tools."""
    from examples.learn.model import train_tokenizer

    return train_tokenizer(texts, 300)


@pytest.fixture
def model(tokenizer):
    """A causal language model of random parameters, the same each time."""
    from examples.learn.model import make_deterministic, make_model

    make_deterministic(0)
    return make_model(tokenizer)

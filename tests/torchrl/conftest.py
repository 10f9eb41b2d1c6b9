"""These tests run where TorchRL is installed: `make test-torchrl`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.training import library_warnings

HERE = find_spec("torchrl") is not None
collect_ignore_glob = [] if HERE else ["*test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of TorchRL about TorchRL; warnings of this project are errors."""
    if HERE:
        library_warnings.ignore(config)


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level tokenizer of some 400 tokens, with a chat template."""
    from examples.torchrl_chat import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer):
    """A causal language model of some 40,000 random parameters."""
    import torch

    from examples.torchrl_chat import tiny_model

    torch.set_num_threads(1)  # more than one wait for each other in matrices of this size
    return tiny_model(tokenizer)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    """A model with random weights may write anything: in each run the same."""
    import torch

    torch.manual_seed(0)

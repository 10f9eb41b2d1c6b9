"""Batches of queries, their tasks, and warnings of TorchRL about itself."""

from __future__ import annotations

import pytest
from tensordict import TensorDict

# TorchRL's own, in its wrapper, its containers and its tokenizing transform.
IGNORED = [
    pytest.mark.filterwarnings("ignore:size_average and reduce args"),
    pytest.mark.filterwarnings("ignore:(Prompt|Full) history should have one more batch dimension"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]


def batch(*queries, **columns):
    return TensorDict({"query": list(queries), **columns}, batch_size=(len(queries),))


TWO = {"context": ["a b c", "d e"], "expected_answer": [3, "2"]}
ASKED = ("How many words?", "How many words are in the longer one of the questions?")

"""Columns of a dataset, in the tensordict that resets an environment, as the requests of its rows.

TorchRL drops every entry of that tensordict which is in no state spec, without a word, so that the
columns must be named to it (`state_columns`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_tensor_collection
from torch import Tensor
from torchrl.data import Composite, NonTensor

# Arguments of a reset that a dataset may have a column for. Keys of models are none.
ARGUMENTS = (
    "context", "contexts", "files", "task_prompt", "expected_answer", "answer_schema",
    "max_iterations", "seed", "episode_id",
)  # fmt: skip
# Columns that say which task a row is; what groups and reports rollouts needs them.
LABELS = ("task_id", "group_id", "split", "difficulty")


def columns_of(given: Mapping[str, str] | Collection[str] | None) -> dict[str, str]:
    """The argument of a reset that each column is for; None: each column is named as its argument.

    Raises:
        TypeError, ValueError: naming the argument `columns`.
    """
    if given is None:
        return {name: name for name in ARGUMENTS}
    if isinstance(given, str):
        raise TypeError("columns must be a mapping or a list of names, not str")
    columns = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    for column, argument in columns.items():
        if argument not in ARGUMENTS:
            names = ", ".join(ARGUMENTS)
            raise ValueError(f"columns: {column!r} is for {argument!r}, which is none of {names}")
    return columns


def with_state_columns(state_spec: Composite, columns: Collection[str]) -> Composite:
    """`state_spec` with these columns, so that a reset's tensordict keeps them."""
    spec = state_spec.clone()
    for column in columns:
        if column not in spec.keys():  # noqa: SIM118 - `in` asks whether a value is in a spec
            spec[column] = NonTensor(shape=spec.shape, device=spec.device, example_data="")
    return spec


def request_of(row: TensorDictBase, columns: Mapping[str, str], query_key: str) -> dict[str, Any]:
    """The arguments of one row's reset. The task is its query, if no column says it."""
    request = {
        argument: value
        for column, argument in columns.items()
        if (value := plain(row.get(column, None))) is not None
    }
    query = plain(row.get(query_key, None))
    if "task_prompt" not in request and isinstance(query, str):
        request["task_prompt"] = query
    return request


def plain(value: Any) -> Any:
    """An entry of one row as a plain value: what was put in before TensorDict wrapped it."""
    if isinstance(value, (NonTensorData, NonTensorStack)):
        value = value.tolist()
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()  # a number, if it has no dimensions
    if is_tensor_collection(value):
        return {key: plain(each) for key, each in value.items()}
    return value

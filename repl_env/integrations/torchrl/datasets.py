"""Rows of datasets and tensordicts, and data loaders of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDictBase,
    is_tensor_collection,
    lazy_stack,
)
from torch import Tensor
from torch.utils.data import DataLoader
from torchrl.data import Composite, NonTensor
from torchrl.data.llm import History

from repl_env.common.files import read_regular
from repl_env.common.values import at_least
from repl_env.integrations import ARGUMENTS

# Columns of a dataset, in the tensordict that resets an environment, as the requests of its rows.
#
# TorchRL drops every entry of that tensordict which is in no state spec, without a word, so that
# the columns must be named to it (`with_state_columns`).

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


# Conversations of a batch, whose rows need not be equally long: read at the end, and extended.

PADDING = "<none>"  # the role of a message that TorchRL fills up a batch with


def rows_of(batch: Any, dims: int) -> list[Any]:
    """The rows of a tensordict or a tensorclass with `dims` dimensions of batch, in order."""
    if dims == 0:
        return [batch]
    return [row for part in batch.unbind(0) for row in rows_of(part, dims - 1)]


def last_reply(conversation: History, role: str | None) -> str:
    """The text of the last message that is no padding, if it is of this role, else "".

    A reply that began another turn, as one with `<|im_start|>user` in it does, is none.
    """
    for index in range(len(conversation) - 1, -1, -1):
        message = conversation[index]
        if message.role != PADDING:
            return _text(message.content) if role in (None, message.role) else ""
    return ""


def conversation_of(history: History) -> list[dict[str, str]]:
    """The messages of one row's conversation, without padding."""
    messages = (history[index] for index in range(len(history)))
    return [
        {"role": each.role, "content": _text(each.content)}
        for each in messages
        if each.role != PADDING
    ]


def with_messages(history: History, dims: int, messages: Sequence[tuple[str, str]]) -> History:
    """`history` with one more message, (role, content), at the end of each row; a new one."""
    return _extended(history, dims, iter(messages))


def _extended(history: History, dims: int, messages: Iterator[tuple[str, str]]) -> History:
    if dims > 0:
        return lazy_stack([_extended(part, dims - 1, messages) for part in history.unbind(0)])
    role, content = next(messages)
    return lazy_stack(
        [*history.unbind(0), History(role=role, content=content, device=history.device)]
    )


def _text(content: Any) -> str:
    """The text of a message, which may consist of parts; parts that are no text are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


# The rows of a data set of tasks, from all that one can be given as.

JSONL = (".jsonl", ".ndjson")


def renamed(row: Any, data_key: str) -> dict[str, Any]:
    """A row whose column "text" is named `data_key`: TorchRL's prompts are under "text"."""
    if isinstance(row, str):
        return {data_key: row}
    if not isinstance(row, Mapping):
        raise TypeError(f"a row must be a dict or text, not {type(row).__name__}")
    if "text" not in row or data_key in row:
        return dict(row)
    return {data_key if name == "text" else name: value for name, value in row.items()}


def loader(
    dataset: Any,
    name: str | None,
    split: str | None,
    seed: int | None,
    batch_size_dl: int,
    shuffle: bool,
    collate_fn: Callable[[Any], Any] | None,
    data_key: str,
) -> Iterable[Any]:
    """A loader of the rows of `dataset`, from its beginning; the same seed gives the same order."""
    if isinstance(dataset, DataLoader):
        own: Iterable[Any] = dataset
        return own
    found = _table(dataset, name, split)
    if len(found) == 0:
        raise ValueError("the data set has no rows")
    if collate_fn is None and isinstance(found, list):
        found = _filled([renamed(row, data_key) for row in found])
    generator = torch.Generator()
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_())
    generator.manual_seed(at_least(seed, -(2**63), "seed"))
    made: Iterable[Any] = DataLoader(
        found,
        batch_size=at_least(batch_size_dl, 1, "batch_size_dl"),
        shuffle=shuffle,
        collate_fn=collate_fn or list,
        generator=generator,
    )
    return made


def endless(loaded: Iterable[Any], data_key: str) -> Iterator[dict[str, Any]]:
    """The rows of a loader, pass after pass, with "text" renamed to `data_key`.

    Raises:
        ValueError: a pass has no row.
    """
    while True:
        empty = True
        for batch in loaded:
            for row in _unbatched(batch):
                empty = False
                yield renamed(row, data_key)
        if empty:
            raise ValueError(
                "the data set has no more rows: a pass over its loader gave none; an iterator "
                "has rows for one pass"
            )


def _table(dataset: Any, name: str | None, split: str | None) -> Any:
    """The object that has the rows, by number."""
    if isinstance(dataset, (str, Path)):
        path = Path(dataset)
        if path.suffix in JSONL:
            _no_parts(name, split)
            return _lines(path)
        dataset = _loaded(dataset, path, name)
    elif not _has_rows(dataset):
        raise TypeError(
            "dataset must be a name or path, a list of rows or a DataLoader, "
            f"not {type(dataset).__name__}"
        )
    if not isinstance(dataset, Mapping):
        _no_parts(name if isinstance(dataset, list) else None, split)
        return dataset
    split = "train" if split is None and "train" in dataset else split
    if split not in dataset:
        known = sorted(map(str, dataset))
        raise ValueError(f"split must be one of those of the data set, {known}, not {split!r}")
    return dataset[split]


def _loaded(dataset: Any, path: Path, name: str | None) -> Any:
    from datasets import load_dataset, load_from_disk

    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return load_from_disk(str(path))
    if path.is_file():
        return load_dataset(str(path.parent), name, data_files=path.name)
    return load_dataset(str(dataset), name)


def _has_rows(dataset: Any) -> bool:
    """Whether it has rows by number; a table with columns by name has none."""
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return False
    if isinstance(dataset, Mapping) or len(dataset) == 0:
        return True
    try:
        dataset[0]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _filled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the columns of all of them, None where a row has none."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{**columns, **row} for row in rows]


def _no_parts(name: str | None, split: str | None) -> None:
    for argument, value in (("name", name), ("split", split)):
        if value is not None:
            raise ValueError(f"{argument}={value!r}: the data set has no such parts")


def _lines(path: Path) -> list[Any]:
    """The rows of a JSONL file."""
    rows = []
    # A line ends with a line feed alone: a text in it may hold other characters that end lines.
    for number, line in enumerate(read_regular(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(row, (dict, str)):
            raise ValueError(f"{path}, line {number}: must be an object or a text")
        rows.append(row)
    return rows


def _unbatched(batch: Any) -> Iterator[Any]:
    """The rows of what a loader gives: a list of rows, a row, or a mapping of columns."""
    if isinstance(batch, (list, tuple)):
        for row in batch:
            yield from _unbatched(row) if is_tensor_collection(row) else iter([row])
    elif is_tensor_collection(batch):
        for row in rows_of(batch, batch.batch_dims):
            yield _of_tensordict(row)
    elif isinstance(batch, Mapping):
        yield from _of_columns(batch)
    else:
        yield batch


def _of_tensordict(row: TensorDictBase) -> dict[str, Any]:
    return {
        str(key): value if isinstance(value, torch.Tensor) else plain(value)
        for key, value in row.items()
    }


def _of_columns(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of columns; a mapping of single values is one row."""
    sizes = {name: _size(value) for name, value in columns.items()}
    if None in sizes.values():
        yield dict(columns)
        return
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the columns of a batch differ in length: {sizes}")
    for number in range(next(iter(sizes.values())) or 0):
        yield {name: column[number] for name, column in columns.items()}


def _size(column: Any) -> int | None:
    """The rows of a column; None for a single value."""
    if isinstance(column, (torch.Tensor, np.ndarray)):
        return len(column) if column.ndim else None
    return len(column) if isinstance(column, (list, tuple)) else None

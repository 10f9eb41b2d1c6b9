"""The rows of a data set of tasks, from all that one can be given as."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils.data import DataLoader

from repl_env.common.files import read_regular
from repl_env.common.values import at_least
from repl_env.integrations.torchrl.data.dataset_columns import plain
from repl_env.integrations.torchrl.data.history_rows import rows_of

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

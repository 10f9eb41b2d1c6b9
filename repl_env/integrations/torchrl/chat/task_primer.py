"""`TaskPrimer`: rows of a data set for the resets of a chat environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Composite, NonTensor, Unbounded
from torchrl.envs.llm.transforms import DataLoadingPrimer

from repl_env.common.display import set_module
from repl_env.integrations.torchrl.chat.chat_history import stacked
from repl_env.integrations.torchrl.chat.chat_rows import TASK_COLUMNS, with_task_id
from repl_env.integrations.torchrl.data.history_rows import rows_of
from repl_env.integrations.torchrl.data.task_data import endless


@set_module("repl_env.integrations.torchrl")
class TaskPrimer(DataLoadingPrimer):
    """Loads a row for each row of the batch that is reset, `repeats` times one after another.

    A data set that ends in the middle of a batch goes on from its beginning in the same batch.
    Columns are those of the first row and all that tell of a task; a value is Python's, or a tensor
    where the loader gives tensors. A row without a `task_id` gets a hash of its task.
    """

    def __init__(
        self,
        dataloader: Iterable[Any] | None = None,
        *,
        dataloader_factory: Callable[[], Iterable[Any]] | None = None,
        primers: Composite | None = None,
        batch_size: tuple[int, ...],
        repeats: int | None = None,
        device: torch.device | None = None,
        data_key: str = "query",
    ) -> None:
        self._data_key = data_key
        self._made_of = dataloader_factory
        loaded = dataloader if dataloader_factory is None else dataloader_factory()
        if loaded is None:
            raise ValueError("give a dataloader or a dataloader_factory")
        self._rows = self._repeated(loaded, repeats or 1)
        self._first: list[dict[str, Any]] = [next(self._rows)]
        self._as_first = primers is None
        if primers is None:
            # A column that tells of the task may be in later rows only.
            primers = _specs({**dict.fromkeys(TASK_COLUMNS), **self._first[0]}, batch_size)
        super().__init__(
            dataloader=loaded,
            primers=primers,
            batch_size=batch_size,
            repeats=repeats,
            device=device,
        )
        self.dataloader_factory = dataloader_factory

    def reset_dataloader(self) -> Self:
        """Begin with the first row again; the order is that of the seed."""
        if self._made_of is not None:
            self.dataloader = self._made_of()
        self._rows = self._repeated(self.dataloader, self.repeats or 1)
        self._first = []
        return self

    def _repeated(self, loaded: Iterable[Any], repeats: int) -> Iterator[dict[str, Any]]:
        for row in endless(loaded, self._data_key):
            named = with_task_id(row, self._data_key)
            for _ in range(repeats):
                yield named

    def _load_from_dataloader(self, reset: torch.Tensor | None = None) -> TensorDictBase:
        if reset is None:
            return self._next()
        return stacked([self._next() for _ in range(int(reset.sum()))], [int(reset.sum())])

    def _next(self) -> TensorDictBase:
        row = self._first.pop() if self._first else next(self._rows)
        for key in self.data_keys:
            if key not in row and key not in TASK_COLUMNS:
                raise KeyError(f"a row of the data set has no {key!r}, as the first one has")
        if self._as_first and (more := row.keys() - set(self.data_keys)):
            raise KeyError(f"a row of the data set has {min(more)!r}, which the first one has not")
        values = {key: _unwrapped(row.get(key)) for key in self.data_keys}
        return TensorDict(values, device=self.device)

    def _reset_func(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        """The tensordict of a reset, with new rows where the mask is set."""
        mask = tensordict_reset.get("_reset", None)
        shape = self.parent.batch_size if self.parent is not None else self.batch_size
        flat = [True] * shape.numel() if mask is None else mask.reshape(-1).tolist()
        empty = tensordict_reset.empty()
        old = rows_of(empty, len(shape))
        rows = [
            self._next() if is_finished else row for is_finished, row in zip(flat, old, strict=True)
        ]
        loaded = stacked(rows, shape)
        return loaded if mask is None else loaded.set("_reset", mask)

    def __getstate__(self) -> dict[str, Any]:
        # A generator has no pickle: a copy begins with the first row.
        return {**super().__getstate__(), "_rows": None, "_first": [], "endless_dataloader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.reset_dataloader()


def _unwrapped(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else NonTensorData(value)


def _specs(row: dict[str, Any], shape: tuple[int, ...]) -> Composite:
    """The specs of the columns of a row, in a batch of `shape`."""
    return Composite({name: _spec(value, shape) for name, value in row.items()}, shape=shape)


def _spec(value: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(value, torch.Tensor):
        return Unbounded(shape=(*shape, *value.shape), dtype=value.dtype)
    return NonTensor(example_data=value, shape=shape)

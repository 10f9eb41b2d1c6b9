"""Tasks of a dataset for chats: the rows that a reset takes, and the primer that draws them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, list_to_stack
from torchrl.data import Composite, NonTensor, Unbounded
from torchrl.envs import TransformedEnv
from torchrl.envs.llm.transforms import DataLoadingPrimer

from repl_env.common.display import set_module
from repl_env.common.values import at_least
from repl_env.integrations import ARGUMENTS
from repl_env.integrations.torchrl.datasets import (
    LABELS,
    endless,
    loader,
    plain,
    rows_of,
)
from repl_env.integrations.torchrl.prompts import InputMode, Message, Prompt, batch_shape, stacked

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


# The rows of a chat environment: the task that each works on, and its prompt.

TASK_COLUMNS = (*ARGUMENTS, *LABELS)
# Columns that tell tasks of one query apart.
_TELLING = ("context", "contexts", "files", "task_prompt", "expected_answer")
_HASH = re.compile("[0-9a-f]{16}")  # as `task_id` makes them
_NOT_OF_A_TASK = frozenset(
    {"done", "terminated", "truncated", "reward", "task_reward", "masked", "episode", "next"}
    | {"_reset", "_step", "history", "text", "tokens", "masks", "log_probs"}
)


@dataclass(frozen=True, slots=True)
class RowTask:
    """The task of a row: its conversation, the columns of its episode, and all other columns."""

    conversation: list[Message]
    columns: Mapping[str, Any]
    others: TensorDictBase

    @classmethod
    def of(cls, conversation: list[Message], row: TensorDictBase) -> Self:
        """The task in a row of a tensordict."""
        columns = {name: plain(row.get(name, None)) for name in TASK_COLUMNS}
        if columns["task_id"] is None:
            content = conversation[0]["content"] if len(conversation) == 1 else conversation
            columns["task_id"] = task_id(content, columns)
        return cls(conversation, columns, row.exclude(*_NOT_OF_A_TASK, *TASK_COLUMNS))

    def entries(self) -> TensorDictBase:
        """The task as entries of a row's tensordict."""
        columns = {name: NonTensorData(value) for name, value in self.columns.items()}
        return self.others.copy().update(columns)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the task for records, without a task id that is a hash.

        The hash is of the expected answer too, which could be found by trying answers.
        """
        facts = {name: self.columns[name] for name in LABELS}
        if _HASH.fullmatch(str(facts["task_id"])):
            del facts["task_id"]
        return facts

    def request(self) -> dict[str, Any]:
        """The arguments of the episode's reset."""
        given = {name: self.columns[name] for name in ARGUMENTS}
        arguments = {"task_prompt": self.conversation[-1]["content"]}
        return arguments | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A row: its prompt and task.

    `beyond_window`: the prompt does not fit, and the episode is cut off. `replaced`: the prompt of
    an episode that went on when a reset without a mask began this one.
    """

    prompt: Prompt
    task: RowTask = field(repr=False)
    beyond_window: bool = False
    replaced: Prompt | None = field(default=None, repr=False)


def with_task_id(row: Mapping[str, Any], data_key: str) -> dict[str, Any]:
    """A row of a data set, with a task id."""
    if row.get("task_id") is not None:
        return dict(row)
    columns = {name: plain(row.get(name)) for name in _TELLING}
    return {**row, "task_id": task_id(plain(row.get(data_key)), columns)}


def task_id(query: object, columns: Mapping[str, Any]) -> str:
    """A name for a task, the same for equal tasks in each process."""
    digest = blake2b(digest_size=8)
    for part in (query, *(columns[name] for name in _TELLING)):
        if not isinstance(part, (str, bytes)):
            part = json.dumps(part, sort_keys=True, default=repr)
        digest.update(part.encode("utf-8", "replace") if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()


# `TaskPrimer`: rows of a data set for the resets of a chat environment.


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


# `DatasetEnv`: a chat environment whose resets take their rows from a data set.


class DatasetEnv(TransformedEnv):
    """Base of `DatasetREPLChatEnv`, which names the environment and documents the arguments."""

    _environment_class: ClassVar[Any]
    SYSTEM_PROMPT: str | None = None

    def __init__(
        self,
        *,
        dataset: Any,
        shuffle: bool = True,
        name: str | None = None,
        split: str | None = None,
        num_envs: int = 1,
        repeats: int | None = None,
        batch_size_dl: int = 1,
        seed: int | None = None,
        group_repeats: bool = False,
        tokenizer: Any = None,
        device: torch.device | None = None,
        template_kwargs: dict[str, Any] | None = None,
        apply_template: bool | None = False,
        collate_fn: Callable[[Any], Any] | None = None,
        input_mode: InputMode = "history",
        data_key: str | None = None,
        primers: Composite | None = None,
        system_prompt: str | None = None,
        ray_backend: bool = False,
        dataloader_actor_name: str | None = None,
        **arguments: Any,
    ) -> None:
        factory = partial(
            loader,
            dataset,
            name=name,
            split=split,
            seed=seed,
            batch_size_dl=batch_size_dl,
            shuffle=shuffle,
            collate_fn=collate_fn,
            data_key=self._environment_class.data_key if data_key is None else data_key,
        )
        self._build(
            dataloader_factory=factory,
            ray=_ray(ray_backend, dataloader_actor_name),
            repeats=repeats,
            device=device,
            group_repeats=group_repeats,
            batch_size=at_least(num_envs, 1, "num_envs"),
            primers=primers,
            tokenizer=tokenizer,
            template_kwargs=template_kwargs,
            input_mode=input_mode,
            data_key=data_key,
            system_prompt=system_prompt,
            **arguments,
        )

    @classmethod
    def from_dataloader(
        cls,
        dataloader: DataLoader[Any],
        *,
        repeats: int | None = None,
        device: torch.device | None = None,
        group_repeats: bool = False,
        batch_size: Sequence[int] | int | None = None,
        primers: Composite | None = None,
        tokenizer: Any = None,
        template_kwargs: dict[str, Any] | None = None,
        input_mode: InputMode = "history",
        data_key: str | None = None,
        system_prompt: str | None = None,
        **arguments: Any,
    ) -> Self:
        """An environment that takes its rows from a loader, or any iterable of batches.

        A batch is a list of rows, a mapping of columns or a tensordict. The other arguments are
        those of the class; `batch_size` is `num_envs`, default (1,).
        """
        env = cls.__new__(cls)
        env._build(
            dataloader=dataloader,
            repeats=repeats,
            device=device,
            group_repeats=group_repeats,
            batch_size=batch_size,
            primers=primers,
            tokenizer=tokenizer,
            template_kwargs=template_kwargs,
            input_mode=input_mode,
            data_key=data_key,
            system_prompt=system_prompt,
            **arguments,
        )
        return env

    def reset_dataloader(self) -> Self:
        """Begin with the first row of the data set again."""
        primer = self.transform
        (primer[0] if hasattr(primer, "__getitem__") else primer).reset_dataloader()
        return self

    def _build(
        self,
        *,
        dataloader: Iterable[Any] | None = None,
        dataloader_factory: Callable[[], Iterable[Any]] | None = None,
        ray: Callable[..., Any] | None = None,
        repeats: int | None,
        device: torch.device | None,
        group_repeats: bool,
        batch_size: Sequence[int] | int | None,
        primers: Composite | None,
        system_prompt: str | None,
        **arguments: Any,
    ) -> None:
        """Make the environment and its primer."""
        if not list_to_stack():
            raise RuntimeError(
                "list_to_stack() must be True: call tensordict.set_list_to_stack(True).set(), or "
                "set LIST_TO_STACK=1"
            )
        repeats = None if repeats is None else at_least(repeats, 1, "repeats")
        shape = batch_shape(batch_size)
        if group_repeats and repeats:
            shape = torch.Size([shape[0] * repeats, *shape[1:]])
        env = self._environment_class(
            batch_size=shape,
            system_prompt=self.SYSTEM_PROMPT if system_prompt is None else system_prompt,
            device=device,
            **arguments,
        )
        options = {
            "dataloader": dataloader,
            "dataloader_factory": dataloader_factory,
            "repeats": repeats,
            "device": device,
            "batch_size": shape,
            "primers": primers,
        }
        primer = TaskPrimer(data_key=env.data_key, **options) if ray is None else ray(**options)
        super().__init__(env, primer)


def _ray(used: bool, actor: str | None) -> Callable[..., Any] | None:
    if not used:
        if actor is not None:
            raise ValueError("dataloader_actor_name is for ray_backend=True")
        return None
    from torchrl.envs.llm.transforms import RayDataLoadingPrimer

    return partial(RayDataLoadingPrimer, actor_name=actor)

"""`DatasetEnv`: a chat environment whose resets take their rows from a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from tensordict import list_to_stack
from torchrl.envs import TransformedEnv

from repl_env.common.values import at_least
from repl_env.integrations.torchrl.chat.chat_options import InputMode, batch_shape
from repl_env.integrations.torchrl.chat.task_primer import TaskPrimer
from repl_env.integrations.torchrl.data.task_data import loader

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torchrl.data import Composite


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

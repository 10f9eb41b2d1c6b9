"""Reward functions of TRL that give None for rollouts which an infrastructure error touched.

TRL leaves a rollout out of the baseline of its group only if every reward function gives None.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from repl_env.common.display import set_module

# Columns that `Rollouts` adds to a batch, for reward functions to read.
REWARD_COLUMN = "episode_reward"
MASKED_COLUMN = "episode_masked"

Rewards = Sequence[float | None]


@set_module("repl_env.integrations.trl")
def episode_reward(episode_reward: Rewards, **_: Any) -> list[float | None]:
    """The rewards of episodes that a `rollout_func` of ours played; None for masked ones."""
    return list(episode_reward)


def log_masked_share(trainer: Any, share: float) -> None:
    """Add the masked share of a batch to the metrics that `trainer` logs."""
    mode = "train" if trainer.model.training else "eval"
    trainer._metrics[mode]["masked_share"].append(share)


@set_module("repl_env.integrations.trl")
def masked_rewards(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a reward function of TRL, with None in the rows of masked rollouts.

    ```python
    trainer = GRPOTrainer(model, reward_funcs=[masked_rewards(brevity)], environment_factory=...)
    ```
    A coroutine function gives a coroutine function. The result can be pickled if `function` can.

    Raises:
        TypeError: `function` is a model, or the name of one, whose rewards TRL computes itself.
    """
    if not callable(function) or hasattr(function, "forward"):
        kind = type(function).__name__
        raise TypeError(
            f"masked_rewards takes a function, not {kind}: wrap a function that calls the model"
        )
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    waits = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(called.__call__)
    return _AsyncMasked(function) if waits else _Masked(function)


class _Masked:
    """A reward function; a class, so that it can be pickled for a process of its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        # TRL names the reward's column so.
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, **batch: Any) -> list[float | None]:
        return _without_masked(self.function(**batch), batch)


class _AsyncMasked(_Masked):
    async def __call__(self, **batch: Any) -> list[float | None]:  # type: ignore[override]
        return _without_masked(await self.function(**batch), batch)


def _without_masked(rewards: Rewards, batch: dict[str, Any]) -> list[float | None]:
    masked = [bool(getattr(each, "masked", False)) for each in batch.get("environments") or ()]
    if not masked:
        masked = list(batch.get(MASKED_COLUMN) or ())
    if not masked:
        return list(rewards)
    return [
        None if is_masked else reward for reward, is_masked in zip(rewards, masked, strict=True)
    ]

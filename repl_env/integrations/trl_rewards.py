"""Reward functions of TRL over the facts of episodes, and the shares of a batch in TRL's logs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from repl_env.common.display import set_module
from repl_env.env.rollouts import PREFIX, EpisodeShares, EpisodeSummary, summary_columns

# Reward functions of TRL that give None for rollouts which an infrastructure error touched.
#
# TRL leaves a rollout out of the baseline of its group only if every reward function gives None.

# Columns that reward functions read: `episode_` before the names of `EpisodeSummary.to_dict`.
MASKED_COLUMN = f"{PREFIX}masked"

Rewards = Sequence[float | None]


@set_module("repl_env.integrations.trl")
def episode_reward(episode_reward: Rewards, **_: Any) -> list[float | None]:
    """The rewards of episodes that a `rollout_func` of ours played; None for masked ones."""
    return list(episode_reward)


def episodes_of(environments: Iterable[Any] | None) -> list[EpisodeSummary]:
    """The facts of the episodes of a trainer's environments; none if some are not of ours."""
    found = [getattr(each, "episode", None) for each in environments or ()]
    episodes = [each for each in found if isinstance(each, EpisodeSummary)]
    return episodes if len(episodes) == len(found) else []


def log_shares(trainer: Any, shares: EpisodeShares, episodes: Sequence[EpisodeSummary]) -> None:
    """Add the shares of a batch, of all processes, to the metrics that `trainer` logs."""
    from accelerate.utils import gather_object

    facts = [{**each.to_dict(), "answer": None, "answer_value": None} for each in episodes]
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]
    batches = len(metrics["masked_share"])
    for name, share in shares.of(gather_object(facts)).items():
        # A kind of failure that is new among the batches of one line of the log.
        metrics[name] += [0.0] * (batches - len(metrics[name]))
        metrics[name].append(share)


@set_module("repl_env.integrations.trl")
def masked_rewards(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a reward function of TRL, with None in the rows of masked rollouts.

    ```python
    def brevity(episode_steps, **_):
        return [-0.1 * steps for steps in episode_steps]

    trainer = GRPOTrainer(model, reward_funcs=[masked_rewards(brevity)], environment_factory=...)
    ```
    The function gets the columns `episode_answer`, `episode_steps` and so on, one for each name of
    `EpisodeSummary.to_dict`, with an environment factory and with a `rollout_func` of ours. The
    shares of masked, answered and failed rollouts are in the logs of each trainer of TRL then.
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
        self._shares = EpisodeShares()

    def __call__(self, **batch: Any) -> list[float | None]:
        return _without_masked(self.function(**_with_facts(batch, self._shares)), batch)


class _AsyncMasked(_Masked):
    async def __call__(self, **batch: Any) -> list[float | None]:  # type: ignore[override]
        return _without_masked(await self.function(**_with_facts(batch, self._shares)), batch)


def _with_facts(batch: dict[str, Any], shares: EpisodeShares) -> dict[str, Any]:
    """The batch with the columns of its episodes, and their shares in the logs.

    `rollout_func` and `REPLGRPOTrainer` have done both before.
    """
    episodes = episodes_of(batch.get("environments"))
    if not episodes or MASKED_COLUMN in batch:
        return batch
    log = batch.get("log_metric")
    if log is not None:
        for name, share in shares.of([episode.to_dict() for episode in episodes]).items():
            log(name, share)
    return {**summary_columns(episodes), **batch}


def _without_masked(rewards: Rewards, batch: dict[str, Any]) -> list[float | None]:
    masked = [bool(getattr(each, "masked", False)) for each in batch.get("environments") or ()]
    if not masked:
        masked = list(batch.get(MASKED_COLUMN) or ())
    if not masked:
        return list(rewards)
    return [
        None if is_masked else reward for reward, is_masked in zip(rewards, masked, strict=True)
    ]

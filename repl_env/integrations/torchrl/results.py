"""Results of rows as entries of tensordicts, reward functions over them, and values for logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, TensorSpec, Unbounded
from torchrl.envs import Transform

from repl_env.common.display import set_module
from repl_env.common.values import check_callable, finite
from repl_env.env.rollouts import PREFIX, EpisodeShares, EpisodeSummary
from repl_env.env.rows import RowResult
from repl_env.integrations import ARGUMENTS
from repl_env.integrations.torchrl.datasets import LABELS, plain, rows_of

# The entry with the facts of an episode.
EPISODE = "episode"

# Results of the rows of a step, as entries of a tensordict, and the specs of these entries.
#
# `reward` and `task_reward` (the task's part of it) are float32, `done`, `terminated`, `truncated`
# and `masked` bool, all of shape (*batch, 1). `masked` is True where a failure of the
# infrastructure touched the episode: such a row is no measure of the policy. `episode`, of shape
# batch, has the facts of each row's episode by name.

_ENDINGS = ("done", "terminated", "truncated")


def with_rewards(spec: Composite) -> Composite:
    """A full reward spec with `reward` in it."""
    return _with(spec, "reward", _real)


def with_endings(spec: Composite) -> Composite:
    """A full done spec with `done`, `terminated` and `truncated` in it."""
    for name in _ENDINGS:
        spec = _with(spec, name, _flag)
    return spec


def with_marks(spec: Composite) -> Composite:
    """An observation spec with `task_reward`, `masked` and `episode` in it."""
    spec = _with(_with(spec, "task_reward", _real), "masked", _flag)
    if EPISODE not in spec.keys():  # noqa: SIM118 - `in` asks whether a value is in a spec
        begun = EpisodeSummary().to_dict()
        spec[EPISODE] = NonTensor(shape=spec.shape, device=spec.device, example_data=begun)
    return spec


def set_begun(tensordict: TensorDictBase) -> None:
    """Set what a reset has: nothing is earned, ended or masked."""
    zeros = torch.zeros((*tensordict.batch_size, 1), device=tensordict.device)
    tensordict.set("task_reward", zeros)
    _set_episodes(tensordict, [None] * tensordict.batch_size.numel())
    for name in (*_ENDINGS, "masked"):
        if tensordict.get(name, None) is None:
            tensordict.set(name, zeros.bool())


def set_stepped(
    tensordict: TensorDictBase,
    stepped: Sequence[RowResult | None],
    last: Sequence[RowResult | None],
) -> None:
    """Set what a step came to: `stepped` are the rows' results, None for those that took none.

    Such a row earns nothing, and is as done as its last result says. Values of the environment
    below or an earlier transform stay: rewards are added, endings united.
    """

    def column(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        flat = torch.tensor(values, dtype=dtype, device=tensordict.device)
        return flat.reshape(*tensordict.batch_size, 1)

    earned = column([row.reward if row else 0.0 for row in stepped], torch.float32)
    before = tensordict.get("reward", None)
    tensordict.set("reward", earned if before is None else before + earned)
    parts = [(row.observation.task_reward or 0.0) if row else 0.0 for row in stepped]
    tensordict.set("task_reward", column(parts, torch.float32))
    tensordict.set("masked", column([bool(row and row.mask) for row in last], torch.bool))
    _set_episodes(tensordict, last)
    for name in _ENDINGS:
        ended = column([bool(row and getattr(row, name)) for row in last], torch.bool)
        before = tensordict.get(name, None)
        tensordict.set(name, ended if before is None else before | ended)


def _set_episodes(tensordict: TensorDictBase, last: Sequence[RowResult | None]) -> None:
    """Set the facts of each row's episode; a row without a result has those of a new episode."""
    episodes = [EpisodeSummary() if row is None else row.episode for row in last]
    facts = [NonTensorData(episode.to_dict()) for episode in episodes]
    if tensordict.batch_dims == 0:
        tensordict.set(EPISODE, facts[0])
    else:
        tensordict.set(EPISODE, _stacked(facts, tensordict.batch_size))


def _stacked(facts: Sequence[NonTensorData], shape: Sequence[int]) -> NonTensorStack:
    if len(shape) == 1:
        return NonTensorStack(*facts)
    size = len(facts) // shape[0]
    parts = (facts[start : start + size] for start in range(0, len(facts), size))
    return NonTensorStack(*(_stacked(part, shape[1:]) for part in parts))


def _with(spec: Composite, name: str, make: Callable[[Any, Any], TensorSpec]) -> Composite:
    if name not in spec.keys():  # noqa: SIM118 - `in` asks whether a value is in a spec
        spec[name] = make((*spec.shape, 1), spec.device)
    return spec


def _real(shape: Any, device: Any) -> TensorSpec:
    return Unbounded(shape=shape, dtype=torch.float32, device=device)


def _flag(shape: Any, device: Any) -> TensorSpec:
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)


# Reward functions of episodes, the same as TRL's, and the shares of a batch.


@set_module("repl_env.integrations.torchrl")
class EpisodeReward(Transform):
    """Adds what a reward function gives for an episode to the reward of the step that ends it.

    ```python
    def brevity(episode_steps, **_):
        return [-0.1 * steps for steps in episode_steps]

    env = env.append_transform(EpisodeReward(brevity))
    ```
    The function is called as TRL's are: with lists by name, an item for each row whose episode has
    just ended. These are `episode_answer`, `episode_steps` and so on, one for each name of
    `repl_env.EpisodeSummary.to_dict`, and the columns of the rows, such as `task_id`, `context` and
    `expected_answer`. The function returns a number for each row, or None for no reward. A masked
    episode gets none.

    Args:
        function: the reward function.
        weight: a factor of its rewards.

    Raises:
        TypeError, ValueError: naming the argument; the function returns another number of rewards.
    """

    def __init__(self, function: Callable[..., Any], *, weight: float = 1.0) -> None:
        super().__init__()
        check_callable(function, "function")
        self.function = function
        self.weight = finite(weight, "weight")

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        dims = next_tensordict.batch_dims
        ended = (next_tensordict["done"] & ~tensordict["done"]).reshape(-1).tolist()
        before, after = rows_of(tensordict, dims), rows_of(next_tensordict, dims)
        numbers = [number for number, is_ended in enumerate(ended) if is_ended]
        if not numbers:
            return next_tensordict
        facts = [plain(after[number].get(EPISODE)) for number in numbers]
        columns = {f"{PREFIX}{name}": [each[name] for each in facts] for name in facts[0]}
        for name in (*ARGUMENTS, *LABELS):
            columns.setdefault(name, [plain(before[n].get(name, None)) for n in numbers])
        rewards = self._rewards(columns, len(numbers))
        more = torch.zeros(len(ended), device=next_tensordict.device)
        for number, each, reward in zip(numbers, facts, rewards, strict=True):
            more[number] = 0.0 if each["masked"] else self.weight * reward
        reward = next_tensordict["reward"]
        return next_tensordict.set("reward", reward + more.reshape(reward.shape))

    def _rewards(self, columns: dict[str, list[Any]], count: int) -> list[float]:
        rewards = list(self.function(**columns))
        if len(rewards) != count:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise ValueError(f"{name} returned {len(rewards)} rewards for {count} episodes")
        return [0.0 if each is None or math.isnan(each) else float(each) for each in rewards]


@set_module("repl_env.integrations.torchrl")
class LogEpisodes:
    """The shares of the ended episodes of a batch that are masked, answered or failed, for logs.

    ```python
    trainer.register_op("pre_steps_log", LogEpisodes())
    ```
    `masked_share`, `answered_share`, `failed_share` and, for each kind of failure that has occurred
    so far, `failed_share/<kind>`: the share of episodes that have a step with such a failure. Of a
    batch without the entry "episode", as of `make_mlgym`, there is the masked share alone. Without
    ended episodes, the shares are those of all steps.
    """

    def __init__(self) -> None:
        self._shares = EpisodeShares()

    def __call__(self, batch: TensorDictBase) -> dict[str, Any]:
        """Return the shares by name, as hooks of TorchRL's trainer do."""
        after = batch["next"]
        ended = after["done"]
        if (before := batch.get("done", None)) is not None:
            ended = ended & ~before  # a row that has ended may be stepped on
        counted = ended.reshape(-1).tolist() if bool(ended.any()) else [True] * ended.numel()
        if after.get(EPISODE, None) is None:
            masked = after.get("masked", None)
            masks = (after["mask"] if masked is None else masked).reshape(-1).tolist()
            masked = [mask for mask, is_counted in zip(masks, counted, strict=True) if is_counted]
            return {"masked_share": sum(masked) / max(len(masked), 1), "log_pbar": True}
        rows = rows_of(after, after.batch_dims)
        facts = [
            plain(row.get(EPISODE))
            for row, is_counted in zip(rows, counted, strict=True)
            if is_counted
        ]
        return {**self._shares.of(facts), "log_pbar": True}

"""Results of the rows of a step, as entries of a tensordict, and the specs of these entries.

`reward` and `task_reward` (the task's part of it) are float32, `done`, `terminated`, `truncated`
and `masked` bool, all of shape (*batch, 1). `masked` is True where a failure of the infrastructure
touched the episode: such a row is no measure of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded

from repl_env.common.display import set_module
from repl_env.env.rows import RowResult

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
    """An observation spec with `task_reward` and `masked` in it."""
    return _with(_with(spec, "task_reward", _real), "masked", _flag)


def set_begun(tensordict: TensorDictBase) -> None:
    """Set what a reset has: nothing is earned, ended or masked."""
    zeros = torch.zeros((*tensordict.batch_size, 1), device=tensordict.device)
    tensordict.set("task_reward", zeros)
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
    for name in _ENDINGS:
        ended = column([bool(row and getattr(row, name)) for row in last], torch.bool)
        before = tensordict.get(name, None)
        tensordict.set(name, ended if before is None else before | ended)


@set_module("repl_env.integrations.torchrl")
def log_masked_share(batch: TensorDictBase) -> dict[str, Any]:
    """Return the share of the batch's ended episodes that are masked, for TorchRL's logs.

    ```python
    trainer.register_op("pre_steps_log", log_masked_share)
    ```
    Without ended episodes it is the share of the steps.
    """
    after = batch["next"]
    masked, done = after.get("masked", None), after["done"]
    if masked is None:
        masked = after["mask"]  # of `make_mlgym`
    counted = masked[done] if bool(done.any()) else masked.flatten()
    share = float(counted.float().mean()) if counted.numel() else 0.0
    return {"masked_share": share, "log_pbar": True}


def _with(spec: Composite, name: str, make: Callable[[Any, Any], TensorSpec]) -> Composite:
    if name not in spec.keys():  # noqa: SIM118 - `in` asks whether a value is in a spec
        spec[name] = make((*spec.shape, 1), spec.device)
    return spec


def _real(shape: Any, device: Any) -> TensorSpec:
    return Unbounded(shape=shape, dtype=torch.float32, device=device)


def _flag(shape: Any, device: Any) -> TensorSpec:
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)

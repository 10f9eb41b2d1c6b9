"""`IsolateCodeBlock` and `ConditionalSkip`: from a reply to the code that runs, or to none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorData, TensorDictBase
from torchrl.data import Categorical, Composite
from torchrl.envs import Transform

from repl_env.common.display import set_module
from repl_env.integrations.torchrl.mlgym.mlgym_templates import WRONG_FORMAT, fill
from repl_env.integrations.torchrl.mlgym.transform_base import MLGymBaseTransform, text_at
from repl_env.parsing.blocks import extract_code_blocks


@set_module("repl_env.integrations.torchrl")
class ConditionalSkip(Transform):
    """Runs no code in steps for which `cond(tensordict)` holds.

    Unlike TorchRL's transform of this name the step is taken: it counts, the transforms see it, and
    it can end the episode. The environment shows `format_error` in place of an output.
    """

    def __init__(self, cond: Callable[[TensorDictBase], Any]) -> None:
        super().__init__()
        self.cond = cond

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        skip = torch.as_tensor(self.cond(tensordict), device=tensordict.device)
        tensordict["skip"] = skip.reshape(tensordict.batch_size)
        return tensordict


@set_module("repl_env.integrations.torchrl")
class IsolateCodeBlock(MLGymBaseTransform):
    """Takes the last block of code of a reply as the action.

    A reply without one is a wrong format: `retry` is True, `format_error` tells the policy why, and
    `reward_wrong_format` is added to the reward of the step; None: nothing is.

    Args:
        parser: from a reply to its code, or None; None: the last block of code.
    """

    response_key = "text_response"

    def __init__(
        self,
        reward_wrong_format: float | None = None,
        parser: Callable[[str], str | None] | None = None,
    ) -> None:
        super().__init__(in_keys_inv=[self.response_key], out_keys_inv=[self.response_key])
        self.reward_wrong_format = reward_wrong_format
        self.parser = parser

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        reply = text_at(tensordict, self.response_key)
        language = getattr(self.config, "language", "bash")
        code = self._last_block(reply, language) if self.parser is None else self.parser(reply)
        wrong = not code
        template = getattr(self.config, "wrong_format_template", WRONG_FORMAT)
        error = fill(template, {"language": language, **self.fields}) if wrong else ""
        tensordict["retry"] = torch.tensor(wrong, device=tensordict.device)
        tensordict["format_error"] = NonTensorData(error, device=tensordict.device)
        tensordict[self.response_key] = NonTensorData(code or "", device=tensordict.device)
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        retry = tensordict["retry"]
        if self.reward_wrong_format is not None and bool(retry):
            reward = next_tensordict["reward"]
            next_tensordict["reward"] = reward + self.reward_wrong_format
        next_tensordict["retry"] = retry
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        tensordict_reset["retry"] = torch.zeros((), dtype=torch.bool, device=self.parent.device)
        return tensordict_reset

    @staticmethod
    def _last_block(reply: str, language: str) -> str | None:
        blocks = extract_code_blocks(reply, language)
        return blocks[-1] if blocks else None

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `retry`: whether the last reply had a wrong format."""
        observation_spec["retry"] = Categorical(
            2, dtype=torch.bool, shape=observation_spec.shape, device=observation_spec.device
        )
        return observation_spec

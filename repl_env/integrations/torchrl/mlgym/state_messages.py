"""`ReadState`, `StateToMessage`, `MessageToHistory`: from an observation to the next message."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

from tensordict import NonTensorData, TensorDictBase
from torchrl.data import Composite
from torchrl.data.llm import History

from repl_env.common.display import set_module
from repl_env.env.rows import escaped, template_tokens
from repl_env.integrations.torchrl.mlgym.mlgym_templates import fill
from repl_env.integrations.torchrl.mlgym.transform_base import (
    MLGymBaseTransform,
    goes_on,
    text_at,
    text_spec,
)


class _After(MLGymBaseTransform):
    """A transform that does the same after a reset and after a step, by `_write`.

    It reads what the step led to, never what was before it.
    """

    @abstractmethod
    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write what the transform is for."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset if goes_on(tensordict) else self._write(tensordict_reset)

    def _put(self, tensordict: TensorDictBase, key: str, text: str) -> TensorDictBase:
        tensordict[key] = NonTensorData(text, device=self.parent.device)
        return tensordict


@set_module("repl_env.integrations.torchrl")
class ReadState(_After):
    """Writes `state`: the JSON that the state command prints; "{}" without one."""

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        command = self.state_command
        state = self.base_env.communicate(command) if command else ""
        return self._put(tensordict, "state", state or "{}")

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `state`."""
        observation_spec["state"] = text_spec("{}", observation_spec)
        return observation_spec


@set_module("repl_env.integrations.torchrl")
class StateToMessage(_After):
    """Writes `message`, from the templates, the new `observation` and the new `state`.

    Code in a session can make the state anything. One that is no JSON object leaves the variables
    of the state "unknown".
    """

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = text_at(tensordict, "observation")
        config, base = self.config, self.base_env
        if text_at(tensordict["history"][..., -1], "role") == "system":
            templates = [config.task_template, config.strategy_template]
        elif not observation.strip():
            templates = [config.next_step_no_output_template]
        else:
            templates = [config.next_step_template]
        values = {
            **self.fields,
            **self._state(text_at(tensordict, "state")),
            "current_step": base.current_step,
            "remaining_steps": base.max_steps - base.current_step,
            "observation": observation,
        }
        texts = [fill(template, values) for template in templates if template is not None]
        return self._put(tensordict, "message", "\n".join(texts))

    def _state(self, state: str) -> dict[str, Any]:
        names = getattr(self.config.state_command, "variables", ())
        unknown = dict.fromkeys(names, "unknown")
        try:
            found = json.loads(state)
        except (ValueError, RecursionError):
            return unknown
        return {**unknown, **found} if isinstance(found, dict) else unknown

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `message`."""
        observation_spec["message"] = text_spec("<a message>", observation_spec)
        return observation_spec


@set_module("repl_env.integrations.torchrl")
class MessageToHistory(_After):
    """Appends `message` to `history`, as the user's.

    Tokens of chat templates in the message are broken, so that no output begins a turn.

    Args:
        tokenizer: whose tokens are broken beside those of published templates.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        super().__init__(in_keys=["message", "history"], out_keys=["history"])
        self.tokens = frozenset() if tokenizer is None else template_tokens(tokenizer)

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        message = escaped(text_at(tensordict, "message"), self.tokens)
        turn = History(role="user", content=message, batch_size=(), device=self.parent.device)
        tensordict["history"] = tensordict["history"].append(turn, inplace=False)
        return tensordict

"""`MLGymBaseTransform`: what the transforms of the pipeline know of their environment."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torchrl.data import Composite, NonTensor
from torchrl.data.llm import History
from torchrl.envs import Transform

from repl_env.common.display import set_module
from repl_env.integrations.torchrl.mlgym.mlgym_config import as_fields


class _Setting:
    """A property that is read from the environment, unless it was set."""

    def __init__(self, path: str, doc: str) -> None:
        self._path = path.split(".")
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_own_{name}"

    def __get__(self, transform: Any, owner: type | None = None) -> Any:
        if transform is None:
            return self
        if self._name in transform.__dict__:
            return transform.__dict__[self._name]
        value = transform.base_env
        for name in self._path:
            value = getattr(value, name) if value is not None else None
        return value

    def __set__(self, transform: Any, value: Any) -> None:
        transform.__dict__[self._name] = value


@set_module("repl_env.integrations.torchrl")
class MLGymBaseTransform(Transform):
    """Base of the transforms of the pipeline. They keep nothing of an episode.

    `task_args`, `state_command`, `agent_args`, `model_name` and `name` may be set.
    """

    config = _Setting("config", "The agent's configuration: templates, commands, variables.")
    task_args = _Setting("task.args", "The task's values for templates.")
    state_command = _Setting("config.state_command.name", "The command of the state, or None.")
    agent_args = _Setting("agent_args", "The agent's arguments.")
    model_name = _Setting("agent_args.model.model_name", "The name of the model.")
    name = "torchrl"

    @property
    def base_env(self) -> Any:
        """The `MLGymWrapper`.

        Raises:
            RuntimeError: the transform is in no environment.
        """
        parent = self.parent
        if parent is None:
            raise RuntimeError(f"{type(self).__name__} is in no environment; append it to one")
        return parent.base_env

    @property
    def system_args(self) -> dict[str, Any]:
        """The documentation of the commands, and the environment variables."""
        handler = self.config.tools_handler
        return {"command_docs": handler.command_docs, **handler.env_variables}

    @property
    def fields(self) -> dict[str, Any]:
        """The values that every template may name."""
        return {**as_fields(self.task_args), **self.system_args}


def goes_on(tensordict: TensorDictBase | None) -> bool:
    """True if a reset with this tensordict leaves the episode as it is: its `_reset` is False."""
    mask = None if tensordict is None else tensordict.get("_reset", None)
    return mask is not None and not bool(mask.any())


def text_spec(example: str, like: Any) -> NonTensor:
    """The spec of a text beside those of `like`."""
    return NonTensor(example_data=example, shape=like.shape, device=like.device)


def text_at(tensordict: TensorDictBase, key: Any, default: str = "") -> str:
    """The text at `key`."""
    value = tensordict.get(key, None)
    value = getattr(value, "data", value)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return default if value is None else str(value)


def history_spec() -> Composite:
    """The spec of a conversation of messages with role and content."""
    spec = History.default_spec()
    for name in ("tool_calls", "tool_responses"):  # these are None, which no tensordict shows
        del spec[name]
    return spec

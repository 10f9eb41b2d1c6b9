"""The transforms of MLGym's pipeline: texts, actions, rewards, states and resets."""

from __future__ import annotations

import json
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import torch
from tensordict import NestedKey, NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.data.llm import History
from torchrl.envs import Transform

from repl_env.common.display import set_module
from repl_env.common.values import replace_surrogates
from repl_env.env.rows import escaped, template_tokens
from repl_env.integrations.torchrl.mlgym_config import (
    WRONG_FORMAT,
    as_fields,
    fill,
    read_command_files,
)
from repl_env.parsing.blocks import extract_code_blocks
from repl_env.parsing.fences import without_end_tokens

# `MLGymBaseTransform`: what the transforms of the pipeline know of their environment.


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


# `IsolateCodeBlock` and `ConditionalSkip`: from a reply to the code that runs, or to none.


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


# `MLGymRewardAssignment`: the reward of a step from what the evaluator gave, never from text.

_NAMES = {"baseline": "baseline_score", "score": "evaluation_score"}
_FACTS = ("metric", "direction", "gain", "failure", "submitted", "improvement")


@set_module("repl_env.integrations.torchrl")
class EvaluationOutputParser:
    """Reads the facts about an evaluation, which the environment has from its evaluator.

    Returns those of `baseline_score`, `evaluation_score`, `metric`, `direction`, `gain`,
    `failure`, `submitted` and `improvement` that there are. `improvement` is how much the step
    raised the best gain of the episode.

    Raises:
        TypeError: it is given a text, which anything may have printed.
    """

    def __call__(self, evaluation: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(evaluation, Mapping):
            kind = type(evaluation).__name__
            raise TypeError(f"an evaluation is a mapping of facts, not {kind}: text has no score")
        names = {**_NAMES, **{name: name for name in _FACTS}}
        found = {new: evaluation.get(old) for old, new in names.items()}
        return {name: value for name, value in found.items() if value is not None}


@set_module("repl_env.integrations.torchrl")
class MLGymRewardAssignment(MLGymBaseTransform):
    """Adds to the reward of a step how much that step raised the best gain of the episode.

    The gain of a score is 0 for the baseline's and 1 for the reference's (docs/tasks.md), so that
    rewards of different tasks are of one size, whichever direction is better.
    """

    def __init__(self) -> None:
        super().__init__(in_keys=["reward", "evaluation"], out_keys=["reward"])
        self.parser = EvaluationOutputParser()

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        evaluation = next_tensordict["evaluation"]
        parsed = self.parser(getattr(evaluation, "data", evaluation))
        next_tensordict["reward"] = next_tensordict["reward"] + parsed.get("improvement", 0.0)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset


# `ReadState`, `StateToMessage`, `MessageToHistory`: from an observation to the next message.


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


# `TemplateTransform`: the conversation as the policy's prompt, and its reply as a turn.


@set_module("repl_env.integrations.torchrl")
class TemplateTransform(MLGymBaseTransform):
    """Renders `history` by a chat template to `text`, and reads the policy's reply.

    The reply is the assistant's turn as it is, without the token that ends it. It becomes
    `local_history`; no rendered conversation is read back.

    Args:
        in_keys, out_keys: the history and the prompt; by default `history` and `text`.
        in_keys_inv: the prompt, which is not read, and the reply; by default `text_response`.
        out_keys_inv: where the reply goes for the environment.
        tokenizer: renders the prompt; None: there is no prompt, for policies that read `history`.
        chat_template_name: one of TorchRL's templates, in place of the tokenizer's.
        tokenize: prompts are token ids, and replies too.
        continue_final_message, return_tensors, return_dict, padding, truncation: those of the
            tokenizer's `apply_chat_template`.

    Raises:
        ValueError: there is no such template, or the tokenizer has none.
    """

    response_key: NestedKey = "text_response"
    prompt_key: NestedKey = "text"

    def __init__(
        self,
        in_keys: list[NestedKey] | None = None,
        out_keys: list[NestedKey] | None = None,
        in_keys_inv: list[NestedKey] | None = None,
        out_keys_inv: list[NestedKey] | None = None,
        tokenizer: Any = None,
        chat_template_name: str | None = None,
        continue_final_message: bool = False,
        tokenize: bool = False,
        return_tensors: str = "pt",
        return_dict: bool = False,
        padding: bool | str = False,
        truncation: bool | str = False,
    ) -> None:
        out_keys = [self.prompt_key] if out_keys is None else out_keys
        super().__init__(
            in_keys=["history"] if in_keys is None else in_keys,
            out_keys=out_keys if tokenizer is not None else [],
            in_keys_inv=[out_keys[0], self.response_key] if in_keys_inv is None else in_keys_inv,
            out_keys_inv=[self.response_key] if out_keys_inv is None else out_keys_inv,
        )
        self.tokenizer = tokenizer
        self.chat_template_name = chat_template_name
        self.continue_final_message = continue_final_message
        self.tokenize = tokenize
        self.return_tensors = return_tensors
        self.return_dict = return_dict
        self.padding = padding
        self.truncation = truncation
        self._template = None if tokenizer is None else _template(tokenizer, chat_template_name)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.tokenizer is not None:
            prompt = self._rendered(next_tensordict.get(self.in_keys[0]))
            next_tensordict.set(self.out_keys[0], prompt)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _rendered(self, history: History) -> Any:
        result = history.apply_chat_template(
            tokenizer=self.tokenizer,
            add_generation_prompt=not self.continue_final_message,
            chat_template=self._template,
            continue_final_message=self.continue_final_message,
            tokenize=self.tokenize,
            padding=self.padding,
            truncation=self.truncation,
            return_tensors=self.return_tensors if self.tokenize else None,
            return_dict=self.return_dict if self.tokenize else False,
        )
        if not self.tokenize:
            return NonTensorData(result, device=self.parent.device)
        return result.squeeze(0) if isinstance(result, torch.Tensor) else result

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        reply = self._reply(tensordict)
        device = tensordict.device
        tensordict["local_history"] = History(
            role="assistant", content=reply, batch_size=(), device=device
        )
        tensordict.set(self.out_keys_inv[0], NonTensorData(reply, device=device))
        return tensordict

    def _reply(self, tensordict: TensorDictBase) -> str:
        key = self.in_keys_inv[-1]
        reply = tensordict.get(key, None)
        if reply is None:
            raise KeyError(f"the policy wrote no reply to {key!r}")
        if isinstance(reply, torch.Tensor):
            if self.tokenizer is None or reply.is_floating_point() or reply.is_complex():
                message = "there is no tokenizer" if self.tokenizer is None else str(reply.dtype)
                raise TypeError(f"a reply is a text, or token ids for the tokenizer: {message}")
            reply = self.tokenizer.decode(reply.reshape(-1).tolist())
        else:
            reply = text_at(tensordict, key)
        return without_end_tokens(replace_surrogates(str(reply)))

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """With the reply at the policy's key, which may be another than the environment's."""
        ours, theirs = self.out_keys_inv[0], self.in_keys_inv[-1]
        if theirs != ours:
            action_spec[theirs] = action_spec[ours]
            del action_spec[ours]
        return action_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the prompt, if there is a tokenizer."""
        if self.tokenizer is None:
            return observation_spec
        key, device = self.out_keys[0], observation_spec.device
        if self.tokenize and not self.return_dict:
            observation_spec[key] = Unbounded(shape=(-1,), dtype=torch.int64, device=device)
        elif not self.tokenize:
            observation_spec[key] = text_spec("<some chat string>", observation_spec)
        return observation_spec


def _template(tokenizer: Any, name: str | None) -> str:
    from torchrl.data.llm.history import _CHAT_TEMPLATES

    if name is not None:
        if name not in _CHAT_TEMPLATES:
            known = ", ".join(sorted(_CHAT_TEMPLATES))
            raise ValueError(f"chat_template_name: {name!r} is none of {known}")
        return str(_CHAT_TEMPLATES[name])
    if tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template: give it one, or chat_template_name")
    return str(tokenizer.chat_template)


# `ResetModule` and `TaskSampler`: how an episode begins, and of which task.

_RANDOM = "```python\npass\n```"
_RANDOM_SHELL = "```bash\nls -rtlh\n```"


@set_module("repl_env.integrations.torchrl")
class ResetModule(MLGymBaseTransform):
    """Begins episodes: the task that a reset names, commands, variables, the system message.

    A reset with `task` in its tensordict is of that task. Writes `history`, which has the system
    message; after a step it has the policy's reply, `local_history`, behind the history before.
    """

    response_key = "text_response"

    def __init__(self) -> None:
        super().__init__(in_keys=[], out_keys=["history"])

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        base = self.base_env
        if goes_on(tensordict):
            return tensordict
        if tensordict is not None and "task" in tensordict:
            base.choose(text_at(tensordict, "task"))
        if hasattr(base._env, "task_workspace"):  # MLGym's own: a container that is used again
            base.reset_container()
            workspace = PurePosixPath(str(base._env.task_workspace))
            base.communicate(f"cd {shlex.quote(str(workspace.parent))}")
        return tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if goes_on(tensordict):
            tensordict_reset["history"] = tensordict["history"]
            return tensordict_reset
        self._equip()
        message = fill(self.config.system_template, self.fields)
        tensordict_reset["history"] = History(
            role="system", content=message, batch_size=(1,), device=self.parent.device
        )
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        history, reply = tensordict["history"], tensordict.get("local_history", None)
        if reply is not None:
            history = history.append(reply, inplace=False)
        next_tensordict["history"] = history
        return next_tensordict

    def _equip(self) -> None:
        """Give the session its state command, environment variables and command files."""
        base, config = self.base_env, self.config
        if config.state_command is not None:
            output = base.communicate(config.state_command.code)
            if base.returncode != 0:
                raise RuntimeError(f"the state command failed: {output}")
        variables = {name: str(value) for name, value in config.env_variables.items()}
        if hasattr(base._env, "set_variables"):
            if variables:
                base.set_variables(variables)
            base.add_commands(config.commands)
            return
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        if lines:
            base.communicate("\n".join(lines))
        base.add_commands(read_command_files(config.command_files))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `history`."""
        observation_spec["history"] = history_spec()
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Random actions are replies with a block that does no harm."""
        spec = action_spec[self.response_key]
        is_repl_env = hasattr(self.base_env._env, "step_without_code")
        # Not a `Choice` of several: batched environments cannot take a row of its spec.
        action_spec[self.response_key] = NonTensor(
            example_data=_RANDOM if is_repl_env else _RANDOM_SHELL,
            shape=spec.shape,
            device=spec.device,
        )
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """With `history`, and the `task` that a reset may name."""
        state_spec["history"] = history_spec()
        state_spec["task"] = text_spec("<a task>", state_spec)
        return state_spec


@set_module("repl_env.integrations.torchrl")
class TaskSampler(MLGymBaseTransform):
    """Chooses the task of each episode, by the random numbers of the environment.

    A reset that names a `task`, in a tensordict without `history`, is of that task: what has a
    history goes on from an episode, and its task is that episode's.
    """

    def __init__(self, tasks: list[str]) -> None:
        super().__init__()
        self.tasks = list(tasks)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if tensordict is None:
            tensordict = TensorDict(batch_size=self.parent.batch_size)
        if not goes_on(tensordict) and ("task" not in tensordict or "history" in tensordict):
            chosen = self.base_env.rng.choice(self.tasks)
            tensordict["task"] = NonTensorData(chosen)
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        """With `task`, which the environment writes."""
        observation_spec["task"] = text_spec("<a task>", observation_spec)
        return observation_spec

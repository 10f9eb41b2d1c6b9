"""`TemplateTransform`: the conversation as the policy's prompt, and its reply as a turn."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, NonTensorData, TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.data.llm import History

from repl_env.common.display import set_module
from repl_env.common.values import replace_surrogates
from repl_env.integrations.torchrl.mlgym.transform_base import (
    MLGymBaseTransform,
    text_at,
    text_spec,
)
from repl_env.parsing.fences import without_end_tokens


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

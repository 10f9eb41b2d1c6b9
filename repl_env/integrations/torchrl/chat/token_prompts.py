"""Prompts of token ids, which begin with exactly the ids that the policy sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.modules.llm.policies import Masks, Tokens

from repl_env.integrations.torchrl.chat.chat_history import Message, history_of
from repl_env.integrations.torchrl.chat.chat_prompts import (
    PolicyReply,
    Prompt,
    container,
    no_action,
)
from repl_env.integrations.torchrl.chat.tokenizer_template import ChatTemplate
from repl_env.integrations.torchrl.data.dataset_columns import plain


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids of a prompt, and which of them a policy sampled."""

    ids: torch.Tensor
    sampled: torch.Tensor


class TokenPrompts:
    """Prompts of token ids. The next one begins with exactly the ids of the policy.

    The message alone is tokenised anew, with the template's text around it.
    `("masks", "all_assistant_mask")` is True for the ids that a policy sampled, and False for all
    that was put in: queries, messages and text of the template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        prompt, full = (Tokens.default_spec(shape=shape, keys=[key]) for key in ("prompt", "full"))
        masks = Masks.default_spec(shape=shape)
        prompt["prompt"] = Unbounded(shape=(*shape, -1), dtype=torch.int64)
        full["full"] = Categorical(
            len(self._template.tokenizer), shape=(*shape, -1), dtype=torch.int64
        )
        for key in ("all_attention_mask", "all_assistant_mask"):
            masks[key] = Unbounded(shape=(*shape, -1), dtype=torch.bool)
        seen = Composite(tokens=prompt, masks=masks, shape=shape)
        return seen, Composite(tokens=full, shape=shape)

    def first(self, messages: list[Message]) -> Prompt:
        ids = self._template.ids(self._template.text(history_of(messages)))
        return Ids(ids, torch.zeros_like(ids, dtype=torch.bool))

    def reply(self, row: TensorDictBase, before: Prompt) -> PolicyReply:
        tokens = container(row, "tokens")
        response, full = _ids(tokens, "response"), _ids(tokens, "full")
        prompt_ids, sampled = before.ids, before.sampled
        if response is not None:
            padded = plain(tokens.get("padded", None)) is True
            response = self._end_of(response) if padded else response
            prompt_ids, sampled = self._prompt_ids(tokens, prompt_ids, sampled)
        elif full is None:
            raise no_action("tokens")
        elif _begins(full, prompt_ids):
            response = full[len(prompt_ids) :]
        else:  # the caller changed what came before
            prompt_ids, sampled, response = prompt_ids[:0], sampled[:0], full
        so_far = Ids(
            torch.cat([prompt_ids, response]),
            torch.cat([sampled, torch.ones_like(response, dtype=torch.bool)]),
        )
        return PolicyReply(self._template.cut(self._template.decoded(response)), so_far)

    def following(self, reply: PolicyReply, message: str) -> Prompt:
        ids, sampled = reply.so_far.ids, reply.so_far.sampled
        behind = self._template.ids(self._template.behind_reply(message))
        end = self._template.turn_end_ids
        if _ends(ids, end) and _begins(behind, end):
            behind = behind[len(end) :]
        put_in = torch.zeros_like(behind, dtype=torch.bool)
        return Ids(torch.cat([ids, behind]), torch.cat([sampled, put_in]))

    def length(self, prompt: Prompt) -> int:
        return int(prompt.ids.numel())

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        ids, sampled = prompt.ids.clone(), prompt.sampled.clone()
        attended = torch.ones_like(sampled)
        masks = Masks(all_attention_mask=attended, all_assistant_mask=sampled, padded=False)
        return {"tokens": Tokens(prompt=ids, padded=False), "masks": masks}

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        return _ends(_ids(container(row, "tokens"), "prompt"), prompt.ids)

    def _prompt_ids(
        self, tokens: Any, prompt_ids: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt that was answered: the last one, except where the caller changed it."""
        ids = _ids(tokens, "prompt")
        if ids is None or _ends(ids, prompt_ids):
            return prompt_ids, sampled
        own = (ids != self._template.tokenizer.pad_token_id).nonzero()
        ids = ids[int(own[0]) if len(own) else len(ids) :]
        return ids, torch.zeros_like(ids, dtype=torch.bool)

    def _end_of(self, response: torch.Tensor) -> torch.Tensor:
        """A response without the padding behind it."""
        padding, eos = self._template.tokenizer.pad_token_id, self._template.tokenizer.eos_token_id
        own = (response != padding).nonzero()
        end = int(own[-1]) + 1 if len(own) else 0
        # The first of equal tokens is the one that ended the reply.
        return response[: end + (padding == eos)]


def mark_sampled(row: TensorDictBase) -> None:
    """Set `tokens.full` of an action and its masks from the prompt that follows it.

    TorchRL's wrapper leaves ids equal to the padding out of `full`, which are the ends of all turns
    where the end of a turn is the padding.
    """
    tokens, following = row["tokens"], row["next", "tokens"].prompt
    prompt, response = tokens.get("prompt", None), tokens.get("response", None)
    both = None if prompt is None or response is None else torch.cat([prompt, response])
    for whole in (both, tokens.get("full", None)):
        if whole is not None and _begins(following, whole):
            break
    else:
        return
    row.set(("tokens", "full"), whole)
    for name in ("all_assistant_mask", "all_attention_mask"):
        row.set(("masks", name), row["next", "masks"].get(name)[: len(whole)])


def _ids(tokens: Any, name: str) -> torch.Tensor | None:
    found = tokens.get(name, None)
    if found is None:
        return None
    if not isinstance(found, torch.Tensor):  # a list, as a person writes it
        found = torch.tensor(plain(found))
    return found.reshape(-1).to("cpu", torch.int64)


def _ends(ids: torch.Tensor | None, last: torch.Tensor) -> bool:
    return ids is not None and _begins(ids.flip(0), last.flip(0))


def _begins(ids: torch.Tensor, first: torch.Tensor) -> bool:
    return len(ids) >= len(first) and bool((ids[: len(first)] == first).all())

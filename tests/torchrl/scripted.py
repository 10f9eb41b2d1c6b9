"""A policy that writes given replies, in the containers of `TransformersWrapper`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, lazy_stack
from torchrl.data.llm import History
from torchrl.modules.llm.policies import ChatHistory, Masks, Text, Tokens

END = "<|im_end|>"


class Scripted:
    """Replies by the row and the turn of its episode; the last one again when they run out."""

    def __init__(
        self, tokenizer: Any, mode: str, replies: Sequence[Sequence[str]], end: str = END
    ) -> None:
        self._tokenizer, self._mode, self._replies, self._end = tokenizer, mode, replies, end
        self.turns = [0] * len(replies)
        self.sampled: list[list[torch.Tensor]] = [[] for _ in replies]

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = []
        for number, row in enumerate(tensordict.unbind(0)):
            said = self._replies[number]
            rows.append(self._written(number, row, said[min(self.turns[number], len(said) - 1)]))
            self.turns[number] += 1
        return tensordict.update(lazy_stack(rows))

    def _written(self, number: int, row: TensorDictBase, reply: str) -> TensorDictBase:
        match self._mode:
            case "history":
                asked = row["history"].prompt
                response = lazy_stack([History(role="assistant", content=reply, device=row.device)])
                full = lazy_stack([*asked.unbind(0), *response.unbind(0)])
                chat = ChatHistory(prompt=asked, response=response, full=full)
                return row.empty().set("history", chat)
            case "text":
                asked, response = row["text"].prompt, reply + self._end
                text = Text(prompt=asked, response=response, full=asked + response)
                return row.empty().set("text", text)
            case _:
                asked = row["tokens"].prompt
                ids = self._tokenizer(reply + self._end)["input_ids"]
                response = torch.tensor(ids)
                self.sampled[number].append(response)
                full = torch.cat([asked, response])
                attended = torch.ones_like(full, dtype=torch.bool)
                masks = Masks(all_attention_mask=attended, padded=False)
                tokens = Tokens(prompt=asked, response=response, full=full, padded=False)
                return row.empty().set("tokens", tokens).set("masks", masks)


def fenced(*lines: str) -> str:
    """A reply with one code block."""
    return "\n".join(["```python", *lines, "```"])


def prompts(tensordict: TensorDictBase, mode: str, tokenizer: Any) -> list[str]:
    """The prompts of a batch, as the template renders them."""
    rows = tensordict.unbind(0)
    match mode:
        case "history":
            return [row["history"].prompt.apply_chat_template(tokenizer=tokenizer) for row in rows]
        case "text":
            return [row["text"].prompt for row in rows]
        case _:
            return [tokenizer.decode(row["tokens"].prompt) for row in rows]

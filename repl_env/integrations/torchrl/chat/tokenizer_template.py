"""The chat template of a tokenizer: a prompt, and the text between a reply and the next one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from repl_env.env.rows import escaped, special_tokens, template_tokens
from repl_env.integrations.torchrl.chat.chat_history import history_of

# Stands for a reply while the text behind it is looked for: no template changes or splits it.
_REPLY = "7dbd6c2e9f5b4a60"
_CHATML = frozenset({"<|im_start|>", "<|im_end|>"})


class ChatTemplate:
    """The template of `tokenizer`, applied as `History.apply_chat_template` does with `options`.

    Without a tokenizer, only `unforged` and `cut` work.
    """

    def __init__(
        self, tokenizer: Any, options: Mapping[str, Any], user_role: str, policy_role: str
    ) -> None:
        self.tokenizer = tokenizer
        self._options = dict(options)
        self._user, self._policy = user_role, policy_role
        self.tokens = frozenset() if tokenizer is None else template_tokens(tokenizer)
        # TorchRL renders ChatML for each tokenizer whose template it does not take.
        self._special = _CHATML | special_tokens(tokenizer)

    def text(self, conversation: Any) -> str:
        """The conversation, a `History`, as text, which ends where the policy's reply begins."""
        options = {"add_generation_prompt": True, **self._options}
        text: str = conversation.apply_chat_template(tokenizer=self.tokenizer, **options)
        return text

    def ids(self, text: str) -> torch.Tensor:
        """The token ids of a rendered text."""
        found = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(found, dtype=torch.int64)

    def decoded(self, ids: torch.Tensor) -> str:
        """The text of token ids, special tokens included; ValueError for what is no id."""
        for token in ids.tolist():
            if not 0 <= token < len(self.tokenizer):
                raise ValueError(
                    f"{token} is no id of the tokenizer's {len(self.tokenizer)} tokens"
                )
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def behind_reply(self, message: str) -> str:
        """The text from the end of a reply to the begin of the next, with `message` in between.

        Raises:
            ValueError: the template drops replies.
        """
        conversation = [
            {"role": self._user, "content": "-"},
            {"role": self._policy, "content": _REPLY},
            {"role": self._user, "content": message},
        ]
        _, found, behind = self.text(history_of(conversation)).partition(_REPLY)
        if not found:
            raise ValueError(
                f"the chat template does not render messages of the role {self._policy!r}"
            )
        return behind

    @cached_property
    def turn_end(self) -> str:
        """The token that ends a reply; empty where the template has none."""
        if self.tokenizer is None:
            return "<|im_end|>"
        behind = self.behind_reply("-")
        ends = [token for token in self._special if behind.startswith(token)]
        return max(ends, key=len, default="")

    @cached_property
    def turn_end_ids(self) -> torch.Tensor:
        """The ids of `turn_end`: one, unless the tokenizer has no such token."""
        return self.ids(self.turn_end)

    def cut(self, reply: str) -> str:
        """A reply up to the token that ends it, and without what follows."""
        eos = getattr(self.tokenizer, "eos_token", None)
        for end in (self.turn_end, eos):
            if end:
                reply = reply.partition(str(end))[0]
        return reply

    def unforged(self, text: str) -> str:
        """`text`, escaped where a token of the template stands in it."""
        if any(token in text for token in self._special):
            return escaped(text, self.tokens)
        return text

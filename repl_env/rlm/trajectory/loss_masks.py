"""The sampled tokens of a conversation whose answer is kept only as text.

A chat template renders the conversation; its own tokens around the answer were not sampled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from repl_env.interfaces import Message
from repl_env.llm.base import Completion
from repl_env.llm.local_models.chat_tokenizer import ChatTokenizer, plain, prompt_ids, rendered

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class _Untold(Exception):
    """One way of separating the answer from the template fails here, with the reason."""


@dataclass(frozen=True, slots=True)
class TemplatedReply:
    """`answer` as the next message after `messages`, rendered by the tokenizer's chat template."""

    messages: Sequence[Message]
    answer: Completion
    tokenizer: ChatTokenizer
    template: Mapping[str, Any]

    def masked(self) -> tuple[list[int], list[int]]:
        """Return all token ids, and a 1 for each sampled one.

        Raises:
            ValueError: the tokens of the answer cannot be separated from those of the template.
        """
        ids = self._ids(self._whole())
        reasons = []
        for method in (self._after_prompt, self._by_marks):
            try:
                return ids, self._mask(ids, *method(ids))
            except _Untold as reason:
                reasons.append(str(reason))
        raise ValueError(
            "the tokens of the reply cannot be told from the template's: "
            f"{'; '.join(reasons)}. Record token ids when sampling, or give `template` the"
            " arguments that the prompt was made with"
        )

    def _after_prompt(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the start and end of the answer, if all is prompt, answer, end of turn in this
        order.
        """
        prompt = prompt_ids(self.tokenizer, self.messages, self.template)
        if list(ids[: len(prompt)]) != prompt:
            raise _Untold("the tokens of the conversation do not begin with those of the prompt")
        tail = self.tokenizer.encode(self._tail(), add_special_tokens=False)
        end = len(ids) - len(tail)
        if end < len(prompt) or list(ids[end:]) != list(tail):
            raise _Untold("the reply shares a token with what the template puts after it")
        return len(prompt), end

    def _tail(self) -> str:
        """Return the template's text after the answer."""
        before = rendered(self.tokenizer, self.messages, self.template, head=True)
        text = rendered(self.tokenizer, self._whole(), self.template, head=False)
        content = plain(self._whole())[-1]["content"]
        # Many templates trim their input.
        for form in (content, content.rstrip(), content.lstrip(), content.strip()):
            if text.startswith(before + form):
                return text[len(before) + len(form) :]
        raise _Untold("the template changes the reply, or puts something before it")

    def _by_marks(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the start and end of the answer, as the template marks them."""
        if not _GENERATION.search(str(getattr(self.tokenizer, "chat_template", ""))):
            raise _Untold("the template has no {% generation %}")
        earlier, marks = self._marks(self.messages), self._marks(self._whole())
        if len(marks) != len(earlier) + 1:
            raise _Untold("the template does not mark the reply as one piece")
        begin, end = marks[-1]
        special = self.tokenizer.all_special_ids
        turns = [place for place in range(begin, end) if ids[place] in special]
        # A mark may include the end of the turn; that token has rules of its own.
        if turns and not self.tokenizer.decode(list(ids[turns[-1] + 1 : end])).strip():
            end = turns[-1]
        if self.tokenizer.decode(list(ids[begin:end])).strip() != self.answer.text.strip():
            raise _Untold("what the template marks is not the reply")
        return begin, end

    def _marks(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        marks = self._applied(messages, return_assistant_tokens_mask=True)["assistant_masks"]
        pieces, begin = [], 0
        for value, group in groupby(marks):
            end = begin + len(list(group))
            pieces += [(begin, end)] * bool(value)
            begin = end
        return pieces

    def _mask(self, ids: Sequence[int], begin: int, end: int) -> list[int]:
        """Return 1 from `begin` to `end`, and for a final token that the model made."""
        special = end < len(ids) and ids[end] in self.tokenizer.all_special_ids
        end += special and not self.answer.truncated
        return [int(begin <= place < end) for place in range(len(ids))]

    def _whole(self) -> list[Message]:
        return [*self.messages, {"role": "assistant", "content": self.answer.text}]

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return [int(token) for token in self._applied(messages)["input_ids"]]

    def _applied(self, messages: Sequence[Message], **more: Any) -> Any:
        return self.tokenizer.apply_chat_template(
            plain(messages), return_dict=True, **self.template, **more
        )

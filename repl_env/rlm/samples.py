"""Training samples: one answer of a model as token ids with a loss mask.

This module is independent of runs and files: the caller supplies run, turn and reward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from repl_env.common.display import Displayed, set_module
from repl_env.interfaces import Message
from repl_env.llm.base import Completion, TokenTrace
from repl_env.llm.transformers import ChatTokenizer, plain, prompt_ids, rendered
from repl_env.models import Ending

# The sampled tokens of a conversation whose answer is kept only as text.
#
# A chat template renders the conversation; its own tokens around the answer were not sampled.

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


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingSample(Displayed):
    """A prompt, the model's reply, and its reward.

    Attributes:
        messages, reply: the same as text; `messages` without the reply.
        input_ids: the tokens of both.
        loss_mask: 1 for each token that the model sampled, including the one that ended its turn; 0
            for tokens of the prompt and the chat template.
        reward, weight: as the caller gave them.
        run, turn, depth, parent: its place in a tree of runs.
        logprobs: natural logarithms, one for each 1 of `loss_mask`; None if not recorded.
        masked: the episode failed through no fault of the model; do not train on it.
        task, group_id, split, difficulty: of the task, as in `TaskNote`.
        ended: "terminated", by an answer, or "truncated", by a limit or a loss; None: unknown.
        task_reward: the task's part of `reward`, without penalties.
    """

    messages: tuple[Message, ...]
    reply: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    reward: float | None = None
    weight: float = 1.0
    run: str = "0"
    turn: int = 0
    depth: int = 0
    parent: str | None = None
    logprobs: tuple[float, ...] | None = None
    masked: bool = False
    task: str | None = None
    group_id: str | None = None
    split: str | None = None
    difficulty: str | None = None
    ended: Ending | None = None
    task_reward: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as JSON carries it."""
        as_lists = {"messages", "input_ids", "loss_mask", "logprobs"}
        fields = asdict(self)
        for name in as_lists:
            fields[name] = None if fields[name] is None else list(fields[name])
        return fields


@set_module("repl_env.rlm")
def sample(
    messages: Sequence[Message],
    completion: Completion | str,
    tokenizer: ChatTokenizer | None,
    *,
    template: Mapping[str, Any] | None = None,
    reward: float | None = None,
    weight: float = 1.0,
    run: str = "0",
    turn: int = 0,
    depth: int = 0,
    parent: str | None = None,
    masked: bool = False,
    task: str | None = None,
    group_id: str | None = None,
    split: str | None = None,
    difficulty: str | None = None,
    ended: Ending | None = None,
    task_reward: float | None = None,
) -> TrainingSample:
    """Return the sample of `completion` as an answer to `messages`.

    Recorded token ids are used as they are, because text does not determine its tokens. Otherwise
    the tokenizer's chat template does: the tokens of the whole conversation have to begin with
    those of the prompt, and continue with the reply; if they do not, the template's own marks (`{%
    generation %}`) delimit the reply. A cut answer has no end of turn among its sampled tokens.

    Args:
        tokenizer: may be None if the completion has the ids of its prompt and its output.
        template: arguments of the chat template, the same as for sampling.

    Other arguments are stored in the sample.

    Raises:
        ValueError: the tokens of the reply cannot be separated from those of the template, and why.
    """
    answer = Completion(completion) if isinstance(completion, str) else completion
    ids, mask, logprobs = _masked_tokens(messages, answer, tokenizer, template)
    return TrainingSample(
        messages=tuple(messages),
        reply=answer.text,
        input_ids=tuple(ids),
        loss_mask=tuple(mask),
        reward=reward,
        weight=weight,
        run=run,
        turn=turn,
        depth=depth,
        parent=parent,
        logprobs=logprobs,
        masked=masked,
        task=task,
        group_id=group_id,
        split=split,
        difficulty=difficulty,
        ended=ended,
        task_reward=task_reward,
    )


def _masked_tokens(
    messages: Sequence[Message],
    answer: Completion,
    tokenizer: ChatTokenizer | None,
    template: Mapping[str, Any] | None,
) -> tuple[Sequence[int], Sequence[int], tuple[float, ...] | None]:
    """Return token ids, loss mask and log-probabilities of a conversation that ends with `answer`.

    Raises:
        ValueError: as `sample`.
    """
    trace = answer.tokens or TokenTrace()
    # A reply may consist of the prompt's end alone: then no ids of output are the right ones.
    if trace.output_ids or (trace.prompt_ids and not answer.text):
        prompt = trace.prompt_ids or _prompt(messages, tokenizer, template)
        mask = [0] * len(prompt) + [1] * len(trace.output_ids)
        return [*prompt, *trace.output_ids], mask, _logprobs(trace)
    ids, mask = TemplatedReply(messages, answer, _needed(tokenizer), template or {}).masked()
    return ids, mask, None


def _needed(tokenizer: ChatTokenizer | None) -> ChatTokenizer:
    if tokenizer is None:
        raise ValueError("tokenizer must be given: the completion has no recorded token ids")
    return tokenizer


def _prompt(
    messages: Sequence[Message],
    tokenizer: ChatTokenizer | None,
    template: Mapping[str, Any] | None,
) -> Sequence[int]:
    return prompt_ids(_needed(tokenizer), messages, template or {})


def _logprobs(trace: TokenTrace) -> tuple[float, ...] | None:
    if not trace.logprobs:
        return None
    if len(trace.logprobs) != len(trace.output_ids):
        message = f"{len(trace.logprobs)} log-probabilities for {len(trace.output_ids)} tokens"
        raise ValueError(f"completion.tokens has {message}")
    return trace.logprobs

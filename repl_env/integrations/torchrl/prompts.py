"""The prompt of a chat as history, as text or as tokens, and the reply that is read from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import torch
from tensordict import NonTensorData, TensorDictBase, lazy_stack
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.data.llm import History
from torchrl.modules.llm.policies import ChatHistory, Masks, Text, Tokens

from repl_env.common.values import at_least, one_of
from repl_env.env.rows import escaped, special_tokens, template_tokens
from repl_env.integrations.torchrl.datasets import PADDING, plain, rows_of

# Conversations in a tensordict: a row's query as messages, and messages as a `History`.

Message: TypeAlias = dict[str, Any]

_FIELDS = frozenset({"role", "content", "is_complete", "tool_calls", "tool_responses"})


class ChatConversation(History):
    """A `History` that can be extended where the rows of a batch differ in their messages.

    TorchRL's wrappers of models extend a prompt by a response, which a plain `History` refuses for
    such a batch.
    """

    def extend(self, history: Any, *, inplace: bool = True, dim: int = 0) -> Any:
        """The conversation with the messages of `history` behind it, as `History.extend`."""
        if inplace or self.ndim < 2 or dim not in (-1, self.ndim - 1):
            return super().extend(history, inplace=inplace, dim=dim)
        rows = zip(self.unbind(0), history.unbind(0), strict=True)
        return lazy_stack([row.extend(new, inplace=False, dim=-1) for row, new in rows])


def stacked(rows: Sequence[TensorDictBase], shape: Sequence[int]) -> TensorDictBase:
    """The rows as a batch of `shape`, whose prompts may differ in length."""
    if len(shape) == 1:
        return lazy_stack(list(rows), 0)
    size = len(rows) // shape[0]
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    return lazy_stack([stacked(part, shape[1:]) for part in parts], 0)


def queries(
    tensordict: TensorDictBase, key: str, numbers: Sequence[int], role: str
) -> dict[int, list[Message]]:
    """The conversations that the rows `numbers` begin with, by the number of the row.

    A query is a text, which `role` says; a `History`; or a list of messages. One conversation
    without a dimension of the batch is that of every row.

    Raises:
        KeyError: a row has no query.
        TypeError, ValueError: naming the row.
    """
    whole = tensordict.get(key, None)
    if isinstance(whole, History) and whole.ndim <= 1:
        return {number: _checked(whole, role, key, number) for number in numbers}
    rows = rows_of(tensordict, tensordict.batch_dims)
    values_by_row = {number: _value(rows[number].get(key, None)) for number in numbers}
    # A list of messages over a batch of the same length is one conversation, except where each
    # message is a user's, because a conversation does not consist of these.
    entries = [each for each in values_by_row.values() if _is_message(each)]
    if len(entries) == len(rows) > 1 and any(each["role"] != role for each in entries):
        values_by_row = dict.fromkeys(numbers, entries)
    return {number: _checked(each, role, key, number) for number, each in values_by_row.items()}


def history_of(messages: Sequence[Message]) -> Any:
    """A `History` of one conversation."""
    return lazy_stack(entries_of(messages))


def entries_of(messages: Sequence[Message]) -> list[Any]:
    """Each message as a `History` without dimensions, of which `lazy_stack` makes a conversation.

    To make one takes long beside all else of a step, and so those of a prompt are kept.
    """
    return [ChatConversation(**message) for message in messages]


def messages_of(history: Any) -> list[Message]:
    """The messages of one conversation, without those that fill it up."""
    flat = history.reshape(-1) if history.ndim != 1 else history
    found = [
        {name: read for name, value in each.items() if (read := plain(value)) is not None}
        for each in flat.unbind(0)
    ]
    return [message for message in found if message.get("role") not in (None, PADDING)]


def _value(entry: Any) -> Any:
    value = entry.data if isinstance(entry, NonTensorData) else entry
    return value if isinstance(value, History) else plain(entry)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _checked(value: Any, role: str, key: str, number: int) -> list[Message]:
    """The messages of a query."""
    if value is None:
        raise KeyError(f"row {number} has no {key!r}")
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, History):
        value = messages_of(value)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise TypeError(f"{key} of row {number} must be text, a History or messages, not {kind}")
    if not value:
        raise ValueError(f"{key} of row {number} has no messages")
    for index, message in enumerate(value):
        _check_message(message, f"{key} of row {number}, message {index}")
    return [dict(message) for message in value]


def _check_message(message: object, where: str) -> None:
    if not (isinstance(message, Mapping) and "role" in message and "content" in message):
        raise TypeError(f"{where}: must be a dict with role and content, not {message!r:.80}")
    for name in ("role", "content"):
        if not isinstance(message[name], str):
            raise TypeError(f"{where}: {name} must be text, not {type(message[name]).__name__}")
    if unknown := sorted(map(str, message.keys() - _FIELDS)):
        raise TypeError(f"{where}: a History has no {', '.join(unknown)}")


# The chat template of a tokenizer: a prompt, and the text between a reply and the next one.

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
        self.user_role, self._policy = user_role, policy_role
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
            {"role": self.user_role, "content": "-"},
            {"role": self._policy, "content": _REPLY},
            {"role": self.user_role, "content": message},
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


# The prompts of a conversation in forms of TorchRL: messages and text; then token ids.
#
# Each form makes the first prompt of a row, reads the policy's reply out of its action, and makes
# the next prompt of what the policy wrote and one message. A prompt is a plain value, and becomes
# entries of a tensordict when it is shown.

Prompt: TypeAlias = Any  # `Messages`, a text, or `Ids`


@dataclass(frozen=True, slots=True)
class PolicyReply:
    """A policy's reply: its text, and all that the next prompt begins with."""

    text: str
    so_far: Prompt


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages, and what `entries_of` makes of them."""

    messages: list[Message]
    entries: list[Any]

    @classmethod
    def of(cls, messages: list[Message]) -> Messages:
        """These messages."""
        return cls(messages, entries_of(messages))

    def with_one(self, message: Message) -> Messages:
        """The messages with one more at the end."""
        return Messages([*self.messages, message], [*self.entries, *entries_of([message])])

    def history(self) -> Any:
        """The conversation as a `History`."""
        return lazy_stack(self.entries)


class Prompts(Protocol):
    """One form of prompts."""

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        """The specs of prompts and of actions."""

    def first(self, messages: list[Message]) -> Prompt:
        """The prompt that is the conversation so far."""

    def reply(self, row: TensorDictBase, before: Prompt) -> PolicyReply:
        """The reply in an action to the prompt `before`; ValueError if there is none."""

    def following(self, reply: PolicyReply, message: str) -> Prompt:
        """The prompt of a reply and the message that answers it."""

    def length(self, prompt: Prompt) -> int:
        """The tokens of a prompt."""

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        """A prompt as entries of a row's tensordict."""

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        """True if an action says that it answers this prompt."""


class HistoryPrompts:
    """Prompts of messages. The next one is the last, the reply and the message."""

    def __init__(self, template: ChatTemplate, user_role: str, policy_role: str) -> None:
        self._template = template
        self.user_role, self._policy = user_role, policy_role

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        prompt, full = (ChatHistory.default_spec(shape=shape, keys=[k]) for k in ("prompt", "full"))
        for chat, name in ((prompt, "prompt"), (full, "full")):
            chat[name] = ChatConversation.default_spec(shape=(*shape, -1))
            del chat[name]["tool_calls"], chat[name]["tool_responses"]  # no message here has them
        return Composite(history=prompt, shape=shape), Composite(history=full, shape=shape)

    def first(self, messages: list[Message]) -> Prompt:
        return Messages.of(messages)

    def reply(self, row: TensorDictBase, before: Prompt) -> PolicyReply:
        so_far, response = _split(container(row, "history"), before.messages, self._policy)
        messages = _updated(before, so_far)
        # Of more messages than one, the others are turns that the policy invented.
        own = next((each for each in response if each["role"] == self._policy), None)
        text = "" if own is None else self._template.cut(own["content"])
        reply_message = {"role": self._policy, "content": self._template.unforged(text)}
        return PolicyReply(text, messages.with_one(reply_message))

    def following(self, reply: PolicyReply, message: str) -> Prompt:
        return reply.so_far.with_one({"role": self.user_role, "content": message})

    def length(self, prompt: Prompt) -> int:
        return int(self._template.ids(self._template.text(prompt.history())).numel())

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        return {"history": ChatHistory(prompt=prompt.history())}

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        messages = _history(container(row, "history"), "prompt")
        return messages is not None and _same(messages, prompt.messages)


class TextPrompts:
    """Prompts of text. The next one is what the policy wrote, and the template's text behind it."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        prompt, full = (Text.default_spec(shape=shape, keys=[key]) for key in ("prompt", "full"))
        return Composite(text=prompt, shape=shape), Composite(text=full, shape=shape)

    def first(self, messages: list[Message]) -> Prompt:
        return self._template.text(history_of(messages))

    def reply(self, row: TensorDictBase, before: Prompt) -> PolicyReply:
        text = container(row, "text")
        response, full = plain(text.get("response", None)), plain(text.get("full", None))
        if full is None and response is None:
            raise no_action("text")
        if response is None:
            response = full.removeprefix(before)
        return PolicyReply(
            self._template.cut(response), before + response if full is None else full
        )

    def following(self, reply: PolicyReply, message: str) -> Prompt:
        behind, end = self._template.behind_reply(message), self._template.turn_end
        if end and reply.so_far.endswith(end):
            behind = behind.removeprefix(end)
        return reply.so_far + behind

    def length(self, prompt: Prompt) -> int:
        return int(self._template.ids(prompt).numel())

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        return {"text": Text(prompt=prompt)}

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        return bool(plain(container(row, "text").get("prompt", None)) == prompt)


def container(row: TensorDictBase, key: str) -> Any:
    """The container of a form in an action; KeyError without one."""
    found = row.get(key, None)
    if found is None:
        raise KeyError(f"the action has no {key!r}: the policy must write it")
    return found


def no_action(key: str) -> ValueError:
    """The error for an action without a reply."""
    return ValueError(f"the policy must write ({key!r}, 'response') or ({key!r}, 'full')")


def _history(chat: Any, name: str) -> list[Message] | None:
    found = chat.get(name, None)
    return None if found is None else messages_of(found)


def _split(
    chat: Any, before: list[Message], policy_role: str
) -> tuple[list[Message], list[Message]]:
    """The messages that the policy replied to, and its reply.

    A caller may edit the prompt, so the prompt of the action comes before the environment's own.
    """
    prompt, response, full = (_history(chat, name) for name in ("prompt", "response", "full"))
    if response is not None:
        if full is not None and len(full) > len(response):
            return full[: len(full) - len(response)], response
        return (before if prompt is None else prompt), response
    if full is None:
        raise no_action("history")
    if prompt is not None and _begins_with(full, prompt):
        before = prompt
    elif not _begins_with(full, before):
        return full[:-1], full[-1:]
    # Messages before the policy's first one are the caller's.
    own = (n for n in range(len(before), len(full)) if full[n].get("role") == policy_role)
    reply_at = next(own, len(before))
    return full[:reply_at], full[reply_at:]


def _begins_with(messages: list[Message], first: list[Message]) -> bool:
    return _same(messages[: len(first)], first)


def _updated(messages: Messages, now: list[Message]) -> Messages:
    """The messages as they are `now`: the same ones where they say the same."""
    return messages if _same(now, messages.messages) else Messages.of(now)


def _same(first: list[Message], second: list[Message]) -> bool:
    """True if the same roles say the same."""
    return len(first) == len(second) and all(
        one.get("role") == other.get("role") and one.get("content") == other.get("content")
        for one, other in zip(first, second, strict=True)
    )


# Prompts of token ids, which begin with exactly the ids that the policy sampled.


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
        elif _ids_begin(full, prompt_ids):
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
        if _ids_end(ids, end) and _ids_begin(behind, end):
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
        return _ids_end(_ids(container(row, "tokens"), "prompt"), prompt.ids)

    def _prompt_ids(
        self, tokens: Any, prompt_ids: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt that was answered: the last one, except where the caller changed it."""
        ids = _ids(tokens, "prompt")
        if ids is None or _ids_end(ids, prompt_ids):
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
        if whole is not None and _ids_begin(following, whole):
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


def _ids_end(ids: torch.Tensor | None, last: torch.Tensor) -> bool:
    return ids is not None and _ids_begin(ids.flip(0), last.flip(0))


def _ids_begin(ids: torch.Tensor, first: torch.Tensor) -> bool:
    return len(ids) >= len(first) and bool((ids[: len(first)] == first).all())


# Arguments of `REPLChatEnv`: the form of prompts, the shape of the batch, the prompt limit.

InputMode: TypeAlias = Literal["history", "text", "tokens"]
MODES: tuple[InputMode, ...] = ("history", "text", "tokens")

# A tokenizer without a limit has a number of this size.
_NO_LIMIT = 10**9


def check_input_mode(input_mode: InputMode, tokenizer: object) -> None:
    """Raise TypeError or ValueError unless `tokenizer` suits the input mode."""
    one_of(input_mode, MODES, "input_mode")
    if isinstance(tokenizer, str):
        raise TypeError(f"tokenizer must be a tokenizer, not a name, as {tokenizer!r}")
    if input_mode != "history" and tokenizer is None:
        raise ValueError(f"input_mode={input_mode!r} needs a tokenizer")


def batch_shape(batch_size: Sequence[int] | int | None) -> torch.Size:
    """Return the batch size that an argument gives; ValueError if it is empty."""
    batch_size = (1,) if batch_size is None else batch_size
    sizes = tuple(batch_size) if isinstance(batch_size, Iterable) else (batch_size,)
    if not sizes:
        raise ValueError("batch_size must have at least one dimension")
    return torch.Size([at_least(size, 1, "batch_size") for size in sizes])


def prompts_of(
    mode: InputMode, template: ChatTemplate, user_role: str, policy_role: str
) -> Prompts:
    """Return the prompts of an input mode."""
    match mode:
        case "history":
            return HistoryPrompts(template, user_role, policy_role)
        case "text":
            return TextPrompts(template)
        case "tokens":
            return TokenPrompts(template)


def prompt_limit(max_prompt_tokens: int | None, tokenizer: Any) -> int | None:
    """Return the maximum number of tokens of a prompt; None without a limit."""
    if max_prompt_tokens is not None:
        if tokenizer is None:
            raise ValueError("max_prompt_tokens needs a tokenizer")
        return at_least(max_prompt_tokens, 1, "max_prompt_tokens")
    known = getattr(tokenizer, "model_max_length", None)
    return int(known) if known is not None and known < _NO_LIMIT else None

"""The prompts of a conversation in forms of TorchRL: here messages and text.

Each form makes the first prompt of a row, reads the policy's reply out of its action, and makes the
next prompt of what the policy wrote and one message. A prompt is a plain value, and becomes entries
of a tensordict when it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from tensordict import TensorDictBase, lazy_stack
from torchrl.data import Composite
from torchrl.modules.llm.policies import ChatHistory, Text

from repl_env.integrations.torchrl.chat.chat_history import (
    ChatConversation,
    Message,
    entries_of,
    history_of,
    messages_of,
)
from repl_env.integrations.torchrl.chat.tokenizer_template import ChatTemplate
from repl_env.integrations.torchrl.data.dataset_columns import plain

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
        self._user, self._policy = user_role, policy_role

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
        return reply.so_far.with_one({"role": self._user, "content": message})

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

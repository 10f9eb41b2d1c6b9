"""The prompts of a conversation in the three forms of TorchRL: messages, text and token ids.

Each form makes the first prompt of a row, reads the policy's reply out of its action, and makes the
next prompt of what the policy wrote and one message. A prompt is a plain value, and becomes entries
of a tensordict when it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from tensordict import TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.modules.llm.policies import ChatHistory, Masks, Text, Tokens

from repl_env.integrations.torchrl.chat_template import ChatTemplate
from repl_env.integrations.torchrl.columns import plain
from repl_env.integrations.torchrl.messages import (
    Conversation,
    Message,
    history_of,
    messages_of,
)

Prompt: TypeAlias = Any  # messages, a text, or `Ids`


@dataclass(frozen=True, slots=True)
class Reply:
    """A policy's reply: its text, and all that the next prompt begins with."""

    text: str
    so_far: Prompt


class Prompts(Protocol):
    """One form of prompts."""

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        """The specs of prompts and of actions."""

    def first(self, messages: list[Message]) -> Prompt:
        """The prompt that is the conversation so far."""

    def reply(self, row: TensorDictBase, before: Prompt) -> Reply:
        """The reply in an action to the prompt `before`; ValueError if there is none."""

    def following(self, reply: Reply, message: str) -> Prompt:
        """The prompt of a reply and the message that answers it."""

    def length(self, prompt: Prompt) -> int:
        """The tokens of a prompt."""

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        """A prompt as entries of a row's tensordict."""

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        """Whether an action says that it answers this prompt."""


class HistoryPrompts:
    """Prompts of messages. The next one is the last, the reply and the message."""

    def __init__(self, template: ChatTemplate, user_role: str, policy_role: str) -> None:
        self._template = template
        self._user, self._policy = user_role, policy_role

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        prompt, full = (ChatHistory.default_spec(shape=shape, keys=[k]) for k in ("prompt", "full"))
        for chat, name in ((prompt, "prompt"), (full, "full")):
            chat[name] = Conversation.default_spec(shape=(*shape, -1))
            del chat[name]["tool_calls"], chat[name]["tool_responses"]  # no message here has them
        return Composite(history=prompt, shape=shape), Composite(history=full, shape=shape)

    def first(self, messages: list[Message]) -> Prompt:
        return messages

    def reply(self, row: TensorDictBase, before: Prompt) -> Reply:
        chat = _container(row, "history")
        asked: list[Message] = before
        response, full = _history(chat, "response"), _history(chat, "full")
        if response is not None:
            if full is not None and len(full) > len(response):
                asked = full[: len(full) - len(response)]
        elif full is None:
            raise _no_action("history")
        elif list(map(_said, full[: len(asked)])) == list(map(_said, asked)):
            response = full[len(asked) :]
        else:  # the caller changed what came before
            asked, response = full[:-1], full[-1:]
        # Of more messages than one, the others are turns that the policy invented.
        own = next((each for each in response if each["role"] == self._policy), None)
        text = "" if own is None else self._template.cut(own["content"])
        said = {"role": self._policy, "content": self._template.unforged(text)}
        return Reply(text, [*asked, said])

    def following(self, reply: Reply, message: str) -> Prompt:
        return [*reply.so_far, {"role": self._user, "content": message}]

    def length(self, prompt: Prompt) -> int:
        return int(self._template.ids(self._template.text(prompt)).numel())

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        return {"history": ChatHistory(prompt=history_of(prompt))}

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        asked = _history(_container(row, "history"), "prompt")
        return asked is not None and list(map(_said, asked)) == list(map(_said, prompt))


class TextPrompts:
    """Prompts of text. The next one is what the policy wrote, and the template's text behind it."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def specs(self, shape: torch.Size) -> tuple[Composite, Composite]:
        prompt, full = (Text.default_spec(shape=shape, keys=[key]) for key in ("prompt", "full"))
        return Composite(text=prompt, shape=shape), Composite(text=full, shape=shape)

    def first(self, messages: list[Message]) -> Prompt:
        return self._template.text(messages)

    def reply(self, row: TensorDictBase, before: Prompt) -> Reply:
        text = _container(row, "text")
        response, full = plain(text.get("response", None)), plain(text.get("full", None))
        if full is None and response is None:
            raise _no_action("text")
        if response is None:
            response = full.removeprefix(before)
        return Reply(self._template.cut(response), before + response if full is None else full)

    def following(self, reply: Reply, message: str) -> Prompt:
        behind, end = self._template.behind_reply(message), self._template.turn_end
        if end and reply.so_far.endswith(end):
            behind = behind.removeprefix(end)
        return reply.so_far + behind

    def length(self, prompt: Prompt) -> int:
        return int(self._template.ids(prompt).numel())

    def entries(self, prompt: Prompt) -> dict[str, Any]:
        return {"text": Text(prompt=prompt)}

    def answered(self, row: TensorDictBase, prompt: Prompt) -> bool:
        return bool(plain(_container(row, "text").get("prompt", None)) == prompt)


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
        ids = self._template.ids(self._template.text(messages))
        return Ids(ids, torch.zeros_like(ids, dtype=torch.bool))

    def reply(self, row: TensorDictBase, before: Prompt) -> Reply:
        tokens = _container(row, "tokens")
        response, full = _ids(tokens, "response"), _ids(tokens, "full")
        asked, sampled = before.ids, before.sampled
        if response is not None:
            padded = plain(tokens.get("padded", None)) is True
            response = self._end_of(response) if padded else response
            asked, sampled = self._asked(tokens, asked, sampled)
        elif full is None:
            raise _no_action("tokens")
        elif _begins(full, asked):
            response = full[len(asked) :]
        else:  # the caller changed what came before
            asked, sampled, response = asked[:0], sampled[:0], full
        so_far = Ids(
            torch.cat([asked, response]),
            torch.cat([sampled, torch.ones_like(response, dtype=torch.bool)]),
        )
        return Reply(self._template.cut(self._template.decoded(response)), so_far)

    def following(self, reply: Reply, message: str) -> Prompt:
        ids, sampled = reply.so_far.ids, reply.so_far.sampled
        behind = self._template.ids(self._template.behind_reply(message))
        end = self._template.turn_end_id
        if end is not None and len(ids) and ids[-1] == end:
            behind = behind[1:]
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
        return _ends(_ids(_container(row, "tokens"), "prompt"), prompt.ids)

    def _asked(
        self, tokens: Any, asked: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt that was answered: the last one, except where the caller changed it."""
        given = _ids(tokens, "prompt")
        if given is None or _ends(given, asked):
            return asked, sampled
        own = (given != self._template.tokenizer.pad_token_id).nonzero()
        given = given[int(own[0]) if len(own) else len(given) :]
        return given, torch.zeros_like(given, dtype=torch.bool)

    def _end_of(self, response: torch.Tensor) -> torch.Tensor:
        """A response without the padding behind it."""
        padding, eos = self._template.tokenizer.pad_token_id, self._template.tokenizer.eos_token_id
        own = (response != padding).nonzero()
        end = int(own[-1]) + 1 if len(own) else 0
        # The first of equal tokens is the one that ended the reply.
        return response[: end + (padding == eos)]


def mark_sampled(row: TensorDictBase) -> None:
    """Set `("masks", "all_assistant_mask")` of an action from the prompt that follows it."""
    full, following = row.get(("tokens", "full"), None), row.get(("next", "tokens", "prompt"))
    if full is None or not _begins(following, full):
        return
    row.set(("masks", "all_assistant_mask"), row["next", "masks"].all_assistant_mask[: len(full)])


def _container(row: TensorDictBase, key: str) -> Any:
    found = row.get(key, None)
    if found is None:
        raise KeyError(f"the action has no {key!r}: the policy must write it")
    return found


def _no_action(key: str) -> ValueError:
    return ValueError(f"the policy must write ({key!r}, 'response') or ({key!r}, 'full')")


def _history(chat: Any, name: str) -> list[Message] | None:
    found = chat.get(name, None)
    return None if found is None else messages_of(found)


def _said(message: Message) -> tuple[object, object]:
    return message.get("role"), message.get("content")


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

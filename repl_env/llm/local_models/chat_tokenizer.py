"""Chat messages as token ids, through the chat template of a Hugging Face tokenizer.

Nothing here imports a tokenizer's library: any object with these methods is a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from repl_env.common.json_values import replace_surrogates
from repl_env.interfaces import Message


class ChatTokenizer(Protocol):
    """The part of a tokenizer that prompts and samples need.

    Tokenizers of `transformers` have it.
    """

    all_special_ids: list[int]

    def apply_chat_template(self, conversation: Any, tokenize: bool = True, **kwargs: Any) -> Any:
        """Return the conversation as token ids, or as text if `tokenize` is False."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Return the text of `token_ids`."""


def prompt_ids(
    tokenizer: ChatTokenizer, messages: Sequence[Message], template: Mapping[str, Any]
) -> list[int]:
    """Return the prompt of a model that answers `messages`, with the head of its turn.

    `template` are arguments of the chat template, such as `enable_thinking`.

    Raises:
        ValueError: a message has parts that are not text. Errors of the template are passed on.
    """
    # return_dict: the default changed between versions of transformers.
    ids = tokenizer.apply_chat_template(
        plain(messages), add_generation_prompt=True, return_dict=False, **template
    )
    return [int(token) for token in ids]


def rendered(
    tokenizer: ChatTokenizer, messages: Sequence[Message], template: Mapping[str, Any], head: bool
) -> str:
    """Return the prompt as text; without the head of the next turn unless `head`."""
    text = tokenizer.apply_chat_template(
        plain(messages), tokenize=False, add_generation_prompt=head, **template
    )
    return str(text)


def plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` in the form that every template accepts: content is one valid text.

    Raises:
        ValueError: a part of a message is not text.
    """
    return [{**message, "content": _text(message["content"])} for message in messages]


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return replace_surrogates(content)
    kinds = {str(part.get("type", "text")) for part in content}
    if kinds - {"text"}:
        raise ValueError(f"a message has parts of type {sorted(kinds - {'text'})}; only text goes")
    return replace_surrogates("".join(str(part["text"]) for part in content))

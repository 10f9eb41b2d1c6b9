"""Arguments of `REPLChatEnv`: the form of prompts, the shape of the batch, the prompt limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import torch

from repl_env.common.values import at_least, one_of
from repl_env.integrations.torchrl.chat.chat_prompts import HistoryPrompts, Prompts, TextPrompts
from repl_env.integrations.torchrl.chat.token_prompts import TokenPrompts
from repl_env.integrations.torchrl.chat.tokenizer_template import ChatTemplate

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

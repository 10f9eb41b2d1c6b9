"""Observations as chat messages that cannot begin or end a turn of the conversation.

Code in a session may print anything, including the tokens of a chat template. A template that
renders such a message, or a parser that reads the rendered text, would take these tokens for turn
boundaries. `escaped` breaks each with a backslash: `<|im_end|>` becomes `<\\|im_end|>`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from repl_env.common.json_values import replace_surrogates

# Tokens of turns, tool output and reasoning in published chat templates: the first character, after
# which the backslash goes, and the rest.
_BORDERS = (
    r"<(?=[|\uff5c])",  # <|im_start|>, <|eot_id|>, <|header_start|>; DeepSeek's full-width bars
    r"<(?=/?[a-z_]{1,24}[|\uff5c]>)",  # <turn|>
    r"<(?=/?(?:start|end)_of_[a-z]{1,16}>)",
    r"<(?=/?(?:s|bos|eos|pad|unk|mask|eod|eot|none)>)",
    r"<(?=/?(?:tool|think|function|system|user|assistant|human)[a-z_]{0,24}>)",
    r"<(?=</?SYS>>)",
    r"\[(?=/?(?:INST|[A-Z]{2,16}_(?:PROMPT|CALLS|TOOLS|RESULTS|CONTENT|ID)|ARGS|THINK)\])",
)
# Words that mark turns in templates without tokens.
_LABEL = re.compile(
    r"(?<!\w)(?:#{2,3} )?"
    r"(?:user|assistant|system|human|ai|bot|gpt|tool|instruction|input|response)\s?:",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|[%}]\}[^{]+\{[{%]")
# TorchRL's own templates for these models are not in the tokenizer.
_LABELS_BY_NAME = {"falcon": ("User:", "Assistant:"), "deepseek": ("User:", "Assistant:")}


def escaped(text: str, tokens: Collection[str] = ()) -> str:
    """Return `text` with each chat template token broken by a backslash, without lone surrogates.

    `tokens` are further tokens, as `template_tokens` finds them. Escaping twice changes nothing.
    """
    return _pattern(frozenset(tokens)).sub(lambda found: f"{found[0]}\\", replace_surrogates(text))


def template_tokens(tokenizer: Any) -> frozenset[str]:
    """Return the texts that mark turns for a Hugging Face tokenizer, for `escaped`.

    These are its special tokens, added tokens that are not words, and labels such as "User:" in its
    chat
    template.
    """
    added = set(map(str, getattr(tokenizer, "get_added_vocab", dict)()))
    tokens = special_tokens(tokenizer) | {
        token for token in added if not token.strip()[:1].isalnum()
    }
    template = getattr(tokenizer, "chat_template", None) or ""
    tokens |= _labels(template.values() if isinstance(template, dict) else [template])
    name = str(getattr(tokenizer, "name_or_path", "")).lower()
    for family, labels in _LABELS_BY_NAME.items():
        tokens |= set(labels) if family in name else set()
    return frozenset(token for token in tokens if len(token.strip()) > 1)


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """Return the special tokens of a Hugging Face tokenizer, including those without a role.

    The turn tokens of Llama 3 have no role such as "eos", and `all_special_tokens` omits them.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    unnamed = {str(token) for token in added if getattr(token, "special", False)}
    return frozenset(unnamed | set(map(str, getattr(tokenizer, "all_special_tokens", ()))))


def _labels(templates: Iterable[object]) -> set[str]:
    """Return the labels in the literal texts of templates."""
    return {
        label[0]
        for template in templates
        for literal in _LITERAL.finditer(str(template))
        for label in _LABEL.finditer(literal[0])
    }


@lru_cache(maxsize=16)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """Match the first characters of tokens only, so that overlapping tokens are all found."""
    own = (f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in sorted(tokens))
    return re.compile("|".join((*_BORDERS, *own)))

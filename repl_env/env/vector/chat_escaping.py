"""Text of an observation as a message, which cannot begin or end a turn of the conversation.

Code in a session prints whatever it likes, the tokens of a chat template included. A template that
renders such a message, or a parser that reads the rendered text back, would take these tokens for
borders of turns. `escaped` breaks each with a backslash: `<|im_end|>` is shown as `<\\|im_end|>`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from repl_env.common.json_values import replace_surrogates

# Borders of turns, of tool output and of thoughts in published chat templates: a first character,
# behind which the backslash goes, and the rest.
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
# TorchRL renders for these with templates of its own, which the tokenizer does not have.
_LABELS_BY_NAME = {"falcon": ("User:", "Assistant:"), "deepseek": ("User:", "Assistant:")}


def escaped(text: str, tokens: Collection[str] = ()) -> str:
    """`text` with a backslash in every token of a chat template, and without lone surrogates.

    `tokens`: further tokens, as `template_tokens` finds them. An escaped text stays as it is.
    """
    return _pattern(frozenset(tokens)).sub(lambda found: f"{found[0]}\\", replace_surrogates(text))


def template_tokens(tokenizer: Any) -> frozenset[str]:
    """The texts that mark turns for a Hugging Face tokenizer, for `escaped`.

    These are its special tokens, those added that are no words, and labels such as "User:" that its
    chat template holds.
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
    """The special tokens of a Hugging Face tokenizer, also those without a role such as "eos".

    Such are the borders of turns in Llama 3, which `all_special_tokens` leaves out.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    unnamed = {str(token) for token in added if getattr(token, "special", False)}
    return frozenset(unnamed | set(map(str, getattr(tokenizer, "all_special_tokens", ()))))


def _labels(templates: Iterable[object]) -> set[str]:
    """The labels that stand in the literal texts of templates."""
    return {
        label[0]
        for template in templates
        for literal in _LITERAL.finditer(str(template))
        for label in _LABEL.finditer(literal[0])
    }


@lru_cache(maxsize=16)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """The first characters of tokens. Nothing else is taken, so that all that overlap are found."""
    own = (f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in sorted(tokens))
    return re.compile("|".join((*_BORDERS, *own)))

"""A reasoning model's thoughts before its reply, and the reply without them.

Endpoints that know such a model return its reasoning separately. Others, and local models, return
one text as the model wrote it: with both tags, or with the closing one only, if the chat template
puts the opening tag into the prompt.
"""

from __future__ import annotations

import re

from repl_env.common.set_module import set_module
from repl_env.parsing.block_scanner import blocks_of

_OPENER, _CLOSER = "<think>", "</think>"
_WHITE_SPACE = re.compile(r"\s*+")
# Reasoning between tags that prompts ask for, and between tokens that endpoints leave in a text.
_TAGGED = re.compile(
    r"\s*+(?:<(?P<tag>think|thinking|thoughts?|reasoning|scratchpad|seed:think)>"
    r"|(?P<brackets>\[THINK\])|<\|(?P<token>start_thinking|begin_of_thought)\|>)",
    re.IGNORECASE,
)
_ENDS = {"start_thinking": "<|end_thinking|>", "begin_of_thought": "<|end_of_thought|>"}


@set_module("repl_env")
def without_thoughts(text: str) -> str:
    """Return `text` after the model's reasoning; all of it if there is none.

    In a text that begins with `<think>`, reasoning ends at the first `</think>`; without that tag
    the
    text was cut inside the reasoning, and nothing is left. Otherwise reasoning ends at the first
    line
    that begins with `</think>`, if no earlier line begins with `<think>`. Lines in fenced blocks do
    not
    count, because code may mention these tags.

    A text that was cut inside reasoning whose opening tag was in the prompt has no mark of it.
    """
    return text[_after_marked(text) or _after_unmarked(text) :]


def without_reasoning(text: str) -> str:
    """Return the part of a reply that is searched for code and answers, without any reasoning.

    Reasoning in other tags, such as `<thinking>` and `[THINK]`, is left out too, if the reply
    begins with
    them, closes them and continues. `without_thoughts` keeps these: a caller that asked a model for
    such
    tags may want to read them.
    """
    visible_text = without_thoughts(text)
    reply = 0
    while opener := _TAGGED.match(visible_text, reply):
        closer = re.compile(re.escape(_end_of(opener)), re.IGNORECASE).search(
            visible_text, opener.end()
        )
        if closer is None:
            break
        reply = _after_blank(visible_text, closer.end())
    return visible_text[reply:] or visible_text


def _end_of(opener: re.Match[str]) -> str:
    if opener["brackets"]:
        return "[/THINK]"
    return f"</{opener['tag']}>" if opener["tag"] else _ENDS[opener["token"].lower()]


def _after_marked(text: str) -> int:
    """Return the start of the reply after reasoning between tags; 0 without such reasoning."""
    reply = 0
    # Some models think again before they reply.
    while text.startswith(_OPENER, begin := _after_white_space(text, reply)):
        closer = text.find(_CLOSER, begin)
        if closer < 0:
            return len(text)
        reply = _after_blank(text, closer + len(_CLOSER))
    return reply


def _after_unmarked(text: str) -> int:
    """Return the start of the reply after reasoning without an opening tag; 0 without reasoning."""
    if not text.startswith(_CLOSER) and f"\n{_CLOSER}" not in text:
        return 0
    lines = text.split("\n")
    quoted = _in_blocks(lines)
    place = 0
    for number, line in enumerate(lines):
        if number not in quoted and line.startswith(_OPENER):
            return 0
        if number not in quoted and line.startswith(_CLOSER):
            return _after_blank(text, place + len(_CLOSER))
        place += len(line) + 1
    return 0


def _in_blocks(lines: list[str]) -> set[int]:
    """Return the lines of fenced blocks; an open block may end with the reasoning."""
    blocks = (block for block in blocks_of(lines) if block.closed)
    return {number for block in blocks for number in range(block.begin, block.end)}


def _after_blank(text: str, begin: int) -> int:
    """Return the position after blanks, with the indent of its line if that is a later line."""
    end = _after_white_space(text, begin)
    return text.rfind("\n", begin, end) + 1 or end


def _after_white_space(text: str, begin: int) -> int:
    space = _WHITE_SPACE.match(text, begin)
    return space.end() if space else begin

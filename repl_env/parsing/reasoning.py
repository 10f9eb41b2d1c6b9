"""The thoughts that a reasoning model writes before its reply, and the reply without them.

Endpoints that know such a model give its thoughts apart. Others, and models in this process, give
one text, as the model wrote it: with both tags, or with the closing one only where the chat
template puts the other into the prompt.
"""

from __future__ import annotations

import re

from repl_env.parsing.block_scanner import blocks_of

_OPENER, _CLOSER = "<think>", "</think>"
_WHITE_SPACE = re.compile(r"\s*+")
# Thoughts between tags that prompts ask for, and between tokens that endpoints leave in a text.
_TAGGED = re.compile(
    r"\s*+(?:<(?P<tag>think|thinking|thoughts?|reasoning|scratchpad|seed:think)>"
    r"|(?P<brackets>\[THINK\])|<\|(?P<token>start_thinking|begin_of_thought)\|>)",
    re.IGNORECASE,
)
_ENDS = {"start_thinking": "<|end_thinking|>", "begin_of_thought": "<|end_of_thought|>"}


def without_thoughts(text: str) -> str:
    """What `text` says after the model's thoughts; all of it if there are none.

    A text that begins with `<think>` has thoughts up to the first `</think>`; if there is none, it
    was cut amid them, and nothing is left. Otherwise they go up to the first line that begins with
    `</think>`, if no line before it begins with `<think>`. Lines in fenced blocks say nothing here,
    because code may be about these tags.

    A text that was cut amid thoughts whose opening tag stood in the prompt has no mark of them.
    """
    return text[_after_marked(text) or _after_unmarked(text) :]


def spoken(text: str) -> str:
    """The part of a reply that is read for code and answers: without thoughts of any kind.

    Thoughts between tags as `<thinking>` and `[THINK]` are left out too, where the reply begins
    with them, closes them and goes on. `without_thoughts` keeps these: who asked a model for such
    tags may want to read them.
    """
    said = without_thoughts(text)
    reply = 0
    while opener := _TAGGED.match(said, reply):
        closer = re.compile(re.escape(_end_of(opener)), re.IGNORECASE).search(said, opener.end())
        if closer is None:
            break
        reply = _after_blank(said, closer.end())
    return said[reply:] or said


def _end_of(opener: re.Match[str]) -> str:
    if opener["brackets"]:
        return "[/THINK]"
    return f"</{opener['tag']}>" if opener["tag"] else _ENDS[opener["token"].lower()]


def _after_marked(text: str) -> int:
    """Where the reply begins if the thoughts before it have both tags; 0 without such thoughts."""
    reply = 0
    # Some models think again before they say anything.
    while text.startswith(_OPENER, begin := _after_white_space(text, reply)):
        closer = text.find(_CLOSER, begin)
        if closer < 0:
            return len(text)
        reply = _after_blank(text, closer + len(_CLOSER))
    return reply


def _after_unmarked(text: str) -> int:
    """Where the reply begins if the thoughts before it have no opening tag; 0 without thoughts."""
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
    """The lines of fenced blocks; a block that is left open may well end with the thoughts."""
    blocks = (block for block in blocks_of(lines) if block.closed)
    return {number for block in blocks for number in range(block.begin, block.end)}


def _after_blank(text: str, begin: int) -> int:
    """Where the text goes on, with the indent of its line if that is not the line of `begin`."""
    end = _after_white_space(text, begin)
    return text.rfind("\n", begin, end) + 1 or end


def _after_white_space(text: str, begin: int) -> int:
    space = _WHITE_SPACE.match(text, begin)
    return space.end() if space else begin

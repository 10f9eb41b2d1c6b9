"""Answers that a model writes outside of code, where only code was asked for.

One turn in six of untrained models does (arXiv 2512.24601, appendix). It costs nothing to
understand them: the text is the model's own, never something that code printed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice

from repl_env.thoughts import without_thoughts

_VARIABLE = re.compile(
    r"^[ \t]*FINAL_VAR\(\s*(?P<quote>[\"'`]?)(?P<name>\w+)(?P=quote)\s*\)", re.MULTILINE
)
_ANSWER = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_PARENTHESIS = re.compile(r"[()]")


@dataclass(frozen=True, slots=True)
class ProseAnswer:
    """An answer in prose: the name of a variable, or a text."""

    text: str
    is_variable: bool = False


def answer_in(prose: str, variables: Container[str] = ()) -> ProseAnswer | None:
    """The answer that a reply without code gives at the beginning of a line, if any.

    `variables` are the names in the session: `FINAL(total)` means one of these. What the model
    thought before its reply is no part of it.
    """
    prose = without_thoughts(prose)
    variable = _VARIABLE.search(prose)
    answer = _ANSWER.search(prose)
    if variable is not None and (answer is None or variable.start() < answer.start()):
        return ProseAnswer(variable["name"], is_variable=True)
    if answer is None:
        return None
    text = _inside(prose, answer.end()).strip()
    if text in variables:
        return ProseAnswer(text, is_variable=True)
    return ProseAnswer(_unquoted(text))


# A literal with more parentheses, or longer, is found by counting them: each try parses it again,
# and takes a hundred times its size in memory.
_MOST_CLOSERS = 100
_LONGEST_LITERAL = 100_000


def _inside(text: str, start: int) -> str:
    """What stands between a parenthesis that opens before `start` and the one that closes it."""
    most = start + _LONGEST_LITERAL
    for closer in islice(re.compile(r"\)").finditer(text, start, most), _MOST_CLOSERS):
        inside = text[start : closer.start()].strip()
        if _literal(inside) is not None:
            return inside
    depth = 1
    for found in _PARENTHESIS.finditer(text, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return text[start : found.start()]
    # Prose need not be balanced: a smiley, an enumeration. Then it goes up to the last one.
    end = text.rfind(")")
    return text[start:end] if end >= start else text[start:]


def _unquoted(text: str) -> str:
    value = _literal(text)
    return value if isinstance(value, str) else text


def _literal(text: str) -> object:
    """The value of a Python literal, or None if `text` is none, or a very long one."""
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None

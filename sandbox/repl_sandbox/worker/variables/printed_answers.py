"""Printed forms of an answer: text that a cell itself writes and that begins like `FINAL(`.

They are found in the cell's syntax tree, where the text is written, and never in output: a document
that passes through `print` may say what it likes.
"""

from __future__ import annotations

import builtins
import re
from ast import (
    Add,
    Attribute,
    BinOp,
    Call,
    Constant,
    Expr,
    JoinedStr,
    Load,
    Mod,
    Module,
    Name,
    copy_location,
    expr,
    walk,
)
from collections.abc import Callable
from typing import Any, NamedTuple

# Leading blanks are no part of the form.
_PREFIX = re.compile(r"\s*+(?:FINAL|FINAL_VAR)\(")
_FINAL = "FINAL("

# The name under which a rewritten cell finds its hook among the builtins. No identifier, so nobody
# can write it, and no listing of variables shows it.
HOOK = "<printed>"

_builtins = vars(builtins)
_VARIABLE = re.compile(r"""FINAL_VAR\(\s*(["']?)([^\W\d]\w*)\1\s*\)""")


class PrintedForm(NamedTuple):
    """What a printed form says: `text` between FINAL's parentheses, or FINAL_VAR's `variable`."""

    text: str | None
    variable: str | None


def parse(text: str) -> PrintedForm | None:
    """The form that `text` begins with, behind blanks, or None if it is not complete.

    FINAL's parentheses are balanced, not counting those in quotes that close on the same line;
    where they never balance, the last one of the first line that has any ends the text. White
    space around it is not part of it.
    """
    text = text.lstrip()
    variable = _VARIABLE.match(text)
    if variable is not None:
        return PrintedForm(None, variable[2])
    if not text.startswith(_FINAL):
        return None
    start = len(_FINAL)
    end = _closing(text, start)
    return None if end is None else PrintedForm(text[start:end].strip(), None)


def _closing(text: str, start: int) -> int | None:
    """Where the parenthesis that is open at `start` closes."""
    depth, position = 1, start
    unclosed: dict[str, int] = {}
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _after_quote(text, position, unclosed)
            continue
        depth += (character == "(") - (character == ")")
        if not depth:
            return position
        position += 1
    first = text.find(")", start)
    if first < 0:
        return None
    end = text.find("\n", first)
    return text.rfind(")", first, len(text) if end < 0 else end)


def _after_quote(text: str, position: int, unclosed: dict[str, int]) -> int:
    """The position after a quoted text, or after a character that is an apostrophe.

    `unclosed`: for each kind of quote, up to where it is known not to be closed any more. One that
    is not closed stands before none of its kind but escaped ones, which are not closed either.
    """
    quote = text[position]
    if position < unclosed.get(quote, 0) or (position and text[position - 1].isalnum()):
        return position + 1
    end = position + 1
    while end < len(text) and text[end] not in (quote, "\n"):
        end += 2 if text[end] == "\\" else 1
    if end < len(text) and text[end] == quote:
        return end + 1
    unclosed[quote] = end
    return position + 1


def rewrite(tree: Module) -> None:
    """Wrap every printed form in `tree` into a call of the hook, which returns it unchanged."""
    for node in walk(tree):
        match node:
            case Call(func=Name(id="print"), args=args):
                node.args = [_hooked(arg, False) if _is_form(arg) else arg for arg in args]
    if tree.body and isinstance(last := tree.body[-1], Expr) and _is_form(last.value):
        last.value = _hooked(last.value, True)


def install(printed: Callable[[str, bool], None]) -> None:
    """Set what rewritten cells call with each form, and whether it is the last expression.

    It stays: functions keep the calls that they were compiled with.
    """
    held = _builtins.get(HOOK)
    if type(held) is not _Hook or held.printed is not printed:
        _builtins[HOOK] = _Hook(printed)


class _Hook:
    __slots__ = ("printed",)

    def __init__(self, printed: Callable[[str, bool], None]) -> None:
        self.printed = printed

    def __call__(self, value: Any, last: bool) -> Any:
        if type(value) is str and _PREFIX.match(value):
            self.printed(_from_its_line(value), last)
        return value


def _from_its_line(text: str) -> str:
    """`text` without the empty lines before its form: what stands at the start of a line."""
    blanks = text[: len(text) - len(text.lstrip())]
    return text[blanks.rfind("\n") + 1 :]


def call_hook(value: Any, last: bool) -> Any:
    """The hook, for code whose builtins are not Python's own."""
    return _builtins[HOOK](value, last)


def _is_form(node: expr) -> bool:
    """Whether the node is text written in the cell whose beginning is that of a form."""
    while True:
        match node:
            case BinOp(op=Add() | Mod()):
                node = node.left
            case Call(func=Attribute(value=value, attr="format")):
                node = value
            case JoinedStr(values=[first, *_]):
                node = first
            case Constant(value=str(text)):
                return _PREFIX.match(text) is not None
            case _:
                return False


def _hooked(node: expr, last: bool) -> expr:
    call = Call(func=Name(id=HOOK, ctx=Load()), args=[node, Constant(last)], keywords=[])
    copy_location(call, node)
    for part in (call.func, call.args[1]):
        copy_location(part, node)
    return call

"""Printed forms of an answer: text that a cell writes itself and that begins like `FINAL(`.

They are recognised in the cell's syntax tree, where the text is written, and never in output: a
document that passes through `print` may contain any text.
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

# Name of the hook among the builtins of a rewritten cell. It is no identifier, so no code can use
# it, and no listing of variables shows it.
HOOK = "<printed>"

_builtins = vars(builtins)
_VARIABLE = re.compile(r"""FINAL_VAR\(\s*(["']?)([^\W\d]\w*)\1\s*\)""")


class PrintedForm(NamedTuple):
    """Content of a printed form: `text` between FINAL's parentheses, or FINAL_VAR's `variable`."""

    text: str | None
    variable: str | None


def parse(text: str) -> PrintedForm | None:
    """Return the form at the start of `text`, after blanks, or None if it is incomplete.

    FINAL's parentheses are balanced, except those in quotes that close on the same line; where they
    never balance, the last one of the first line with a parenthesis ends the text. White space
    around the text is not part of it.
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
    """Return the position where the parenthesis open at `start` closes."""
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
    """Return the position after a quoted text, or after a character that is an apostrophe.

    `unclosed`: for each kind of quote, the position up to which no closing quote exists. An
    unclosed quote is followed only by escaped quotes of its kind, which are unclosed too.
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
    """Set the function that rewritten cells call with a form, and whether it comes last.

    It stays set: functions keep the calls that they were compiled with.
    """
    hook = _builtins.get(HOOK)
    if type(hook) is not _Hook or hook.printed is not printed:
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
    """Return `text` without the empty lines before its form, which must begin a line."""
    blanks = text[: len(text) - len(text.lstrip())]
    return text[blanks.rfind("\n") + 1 :]


def call_hook(value: Any, last: bool) -> Any:
    """Return the hook, for code whose builtins are not Python's own."""
    return _builtins[HOOK](value, last)


def _is_form(node: expr) -> bool:
    """Return whether the node is text written in the cell that begins like a form."""
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

"""Final answers of a cell, in every dialect: called, assigned or printed; sent as values."""

from __future__ import annotations

import functools
import json
import os
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

from ..protocol.values import MAX_ANSWER, MAX_ANSWER_VALUES, encoded, more_values
from ..types import JSON, NO_ANSWER, Answer, AnswerForm
from .hints import near
from .namespace import MISSING, Namespace, plain, type_name
from .tracebacks import describe

# Printed forms of an answer: text that a cell writes itself and that begins like `FINAL(`.
#
# They are recognised in the cell's syntax tree, where the text is written, and never in output: a
# document that passes through `print` may contain any text.

# Leading blanks are no part of the form.
_PREFIX = re.compile(r"\s*+(?:FINAL|FINAL_VAR)\(")
_FINAL = "FINAL("

# Name of the hook among the globals of a rewritten cell; no listing of variables shows such a name.
HOOK = "__form__"

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


def install(printed: Callable[[str, bool], None], everything: dict[str, object]) -> None:
    """Set the function that cells with the globals `everything` call with a form.

    The function also takes whether the form comes last. It stays set: functions keep the calls that
    they were compiled with.
    """
    hook = everything.get(HOOK)
    if type(hook) is not _Hook or hook.printed is not printed:
        everything[HOOK] = _Hook(printed)


class _Hook:
    __slots__ = ("printed",)

    def __init__(self, printed: Callable[[str, bool], None]) -> None:
        self.printed = printed

    def __call__(self, value: Any, last: bool) -> Any:
        if type(value) is str and _PREFIX.match(value):
            self.printed(_from_its_line(value), last)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        # For a function that is sent to another process, which sends no answers.
        return _Hook, (_ignore,)


def _ignore(text: str, last: bool) -> None:
    """Take a printed form that is no answer."""


def _from_its_line(text: str) -> str:
    """Return `text` without the empty lines before its form, which must begin a line."""
    blanks = text[: len(text) - len(text.lstrip())]
    return text[blanks.rfind("\n") + 1 :]


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


# Final answers of a cell, in every dialect, sent to the host as values.
#
# `FINAL(x)`, `FINAL_VAR("x")`, `SUBMIT(...)`, `final_answer(x)`, the dict `answer`, printed
# forms. The host decides whether an answer counts and fits a schema; the cell sees a refusal.

_JSON_SCALARS = frozenset(map(id, (str, int, bool, type(None))))


class AnswerDict(dict[str, Any]):
    """The dict `answer`: `{"content": "", "ready": False}`; reports every change at once.

    A copy or pickle is a plain dict.
    """

    __slots__ = ("_on_change",)

    def __init__(self, on_change: Callable[[dict[Any, Any]], None]) -> None:
        super().__init__(NO_ANSWER)
        self._on_change = on_change

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def _reporting(name: str) -> Callable[..., object]:
    change = getattr(dict, name)

    def changed(self: AnswerDict, *args: object, **fields: object) -> object:
        result = change(self, *args, **fields)
        self._on_change(self)
        return result

    return changed


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault"):
    setattr(AnswerDict, _name, _reporting(_name))
AnswerDict.update = _reporting("update")  # type: ignore[assignment,method-assign]


class FinalAnswers:
    """Puts the answer functions and the dict `answer` into a namespace.

    `submit` sends an answer; its ValueError gives the host's reason for a refusal, and is raised in
    the cell. The functions in capitals are restored if a cell overwrites them; `final_answer` and
    `answer` are common names of variables, and may be overwritten.
    """

    def __init__(self, namespace: Namespace, submit: Callable[[Answer], None]) -> None:
        self._namespace = namespace
        self._submit = submit
        self._last_sent: tuple[str, JSON] | None = None
        for function in (*_capitals(self), _final_answer(self)):
            # The name in call errors and in the display, without the enclosing function.
            name = function.__qualname__ = function.__name__
            namespace.inject(name, function, protected=name.isupper())
        namespace.inject("answer", AnswerDict(self._send_if_ready))

    def poll(self) -> None:
        """Check `answer` when a cell ends: it may be a new dict by now, or changed deep inside.

        A refusal is written to standard error, and `ready` is set to False.
        """
        answer = self._namespace.globals.get("answer")
        if not issubclass(type(answer), dict):
            return
        try:
            self._send_if_ready(answer)  # type: ignore[arg-type]
        # Boundary: the cell has ended, so exceptions of its values on conversion to text cannot be
        # raised in it any more.
        except Exception as error:  # noqa: BLE001
            problem = describe(error, 0)
            text = f"answer was not accepted: {problem.type}: {problem.message}\n"
            os.write(2, text.encode())

    def begin_anew(self) -> None:
        """Bind `answer` without an answer, and send the next one even if it was sent before."""
        self._last_sent = None
        answer: Any = self._namespace.injected["answer"]
        dict.clear(answer)
        dict.update(answer, NO_ANSWER)
        self._namespace.globals["answer"] = answer

    def state(self) -> tuple[dict[Any, Any] | None, object]:
        """Return the state for a checkpoint: the content of `answer`, and its last answer.

        Without content if a cell replaced `answer`.
        """
        answer: Any = self._namespace.injected["answer"]
        is_original = self._namespace.globals.get("answer") is answer
        return (dict(answer) if is_original else None), self._last_sent

    def restore(self, state: tuple[dict[Any, Any] | None, Any]) -> None:
        """Restore a result of `state`; answers sent before are not sent again."""
        content, self._last_sent = state
        if content is not None:
            answer: Any = self._namespace.injected["answer"]
            dict.update(answer, content)

    def printed(self, text: str, last: bool) -> None:
        """Send the printed form at the start of `text`; an incomplete form is none.

        `last`: the text was the cell's last expression, which is displayed and not printed.
        """
        form = parse(text)
        if form is None:
            return
        value: object = form.text
        if form.variable is not None:
            value = self._namespace.globals.get(form.variable, MISSING)
        if value is not MISSING:
            self.send("printed", value, printed=None if last else text)

    def send(self, form: AnswerForm, value: object, printed: str | None = None) -> str:
        """Send `value` as the answer, and return it as text.

        Raises:
            ValueError: the answer is too large, or the host refuses it.
            Exception: any exception of `str(value)`.
        """
        text = _as_text(value)
        self._submit(Answer(form, text, _as_json(value), printed))
        return text

    def variable(self, name: object) -> object:
        """Return the value of the variable `name`, or `name` itself if it is no name.

        Raises:
            NameError: `name` could be a name, but there is no such variable.
        """
        if type(name) is not str:
            return name
        key = name.strip().strip("\"'")
        found = self._namespace.globals.get(key, MISSING)
        if found is not MISSING:
            return found
        variables = dict(self._namespace.variables())
        # FINAL_VAR(x), where x holds text: the same object is the value of a variable.
        if not key.isidentifier() or any(value is name for value in variables.values()):
            return name
        similar = near(key, variables)
        advice = f" Did you mean: {similar!r}?" if similar else " To answer with a text, use FINAL."
        raise NameError(f"FINAL_VAR: there is no variable {key!r}.{advice}")

    def show_variables(self) -> str:
        """Return the user's variables except `answer`, with their types, as text."""
        variables = self._namespace.variables()
        types = {name: type_name(value) for name, value in variables if name != "answer"}
        return f"Available variables: {types}" if types else "No variables created yet."

    def _send_if_ready(self, answer: dict[Any, Any]) -> None:
        """Send the content of `answer` if it is ready and was not sent yet."""
        if not dict.get(answer, "ready"):
            self._last_sent = None
            return
        content = dict.get(answer, "content", "")
        try:
            sent = _as_text(content), _as_json(content)
            if sent != self._last_sent:
                self._submit(Answer("answer", *sent))
                self._last_sent = sent
        except Exception:
            dict.__setitem__(answer, "ready", False)
            raise


def _also_by(*names: str) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Let a function of one argument accept it under other names, as its dialects do."""

    def with_names(function: Callable[[Any], Any]) -> Callable[..., Any]:
        own = function.__code__.co_varnames[0]

        @functools.wraps(function)
        def called(*values: object, **named: object) -> Any:
            for name in names:
                if name in named and own not in named:
                    named[own] = named.pop(name)
            return function(*values, **named)

        function.__qualname__ = function.__name__
        return called

    return with_names


def _capitals(answers: FinalAnswers) -> tuple[Callable[..., Any], ...]:
    """Return the functions with names in capitals, which models know."""

    @_also_by("answer")
    def FINAL(value: object) -> str:  # noqa: N802
        """Submit `value` as the final answer."""
        return f"FINAL({answers.send('FINAL', value)})"

    @_also_by("var_name", "variable_name")
    def FINAL_VAR(name: object) -> str:  # noqa: N802
        """Submit the variable called `name` (or a value itself) as the final answer."""
        return f"FINAL({answers.send('FINAL_VAR', answers.variable(name))})"

    def SUBMIT(*value: object, **fields: object) -> None:  # noqa: N802
        """Submit a value, or fields by name or in the order of the schema, as the final answer."""
        if not value and not fields:
            raise TypeError("SUBMIT takes one value, or fields by name: SUBMIT(answer=...)")
        if len(value) + bool(fields) == 1:
            answers.send("SUBMIT", fields or value[0])
        else:  # the host has the schema, and assembles the fields
            answers.send("arguments", {"values": value, "fields": fields})

    def SHOW_VARS() -> str:  # noqa: N802
        """List the variables of this session with their types."""
        return answers.show_variables()

    return FINAL, FINAL_VAR, SUBMIT, SHOW_VARS


def _final_answer(answers: FinalAnswers) -> Callable[[object], object]:
    @_also_by("answer")
    def final_answer(value: object) -> object:
        """Submit `value` as the final answer, and return it."""
        answers.send("final_answer", value)
        return value

    return final_answer


def _as_text(value: object) -> str:
    text = value if type(value) is str else plain(str(value), MAX_ANSWER + 1)
    _check_size(text, "text")
    return text


def _as_json(value: object) -> JSON:
    """Return the value as JSON carries it, None if it cannot: NaN, an object, two equal keys."""
    if id(type(value)) in _JSON_SCALARS:
        return value  # type: ignore[return-value]
    try:
        text = encoded(value, ascii_only=False, any_keys=True)
    # Boundary: reading a user's classes may do anything. The text of the answer is kept.
    except Exception:  # noqa: BLE001
        return None
    _check_size(text, "value")
    if more_values(text.encode("utf-8", "surrogatepass"), MAX_ANSWER_VALUES):
        raise ValueError(
            f"the answer has more than {MAX_ANSWER_VALUES:,} values, the most there can be"
        )
    found: JSON = _decode(text)
    return found


def _check_size(text: str, noun: str) -> None:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_ANSWER:
        raise ValueError(
            f"the answer's {noun} is larger than {MAX_ANSWER >> 20} MiB, the most there can be"
        )


_decode = json.JSONDecoder().decode

"""Final answers of a cell, in every dialect, sent to the host as values.

`FINAL(x)`, `FINAL_VAR("x")`, `SUBMIT(...)`, `final_answer(x)`, the dict `answer`, printed forms.
What counts, and whether it fits a schema, the host decides; when it refuses, the cell is told.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

from ...protocol.values.json_conversion import encoded
from ...protocol.values.json_text import MAX_ANSWER, MAX_ANSWER_VALUES
from ...protocol.values.json_value_count import more_values
from ...types import JSON, Answer, AnswerForm
from ..display.error_hints import near
from ..display.tracebacks import describe
from ..namespace.main_namespace import Namespace
from ..namespace.safe_inspect import MISSING, plain, type_name
from .printed_answers import parse

# Bytes of the text in UTF-8, and of the value as JSON. An answer is read by people and rubrics;
# what is larger is data, and would not fit into one message with the rest of a result.

_JSON_SCALARS = frozenset(map(id, (str, int, bool, type(None))))


class AnswerDict(dict[str, Any]):
    """The dict `answer`: `{"content": "", "ready": False}`; it tells of every change at once.

    Copied or pickled, it becomes a plain dict.
    """

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[dict[Any, Any]], None]) -> None:
        super().__init__(content="", ready=False)
        self._tell = tell

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def _telling(name: str) -> Callable[..., object]:
    change = getattr(dict, name)

    def changed(self: AnswerDict, *args: object, **fields: object) -> object:
        result = change(self, *args, **fields)
        self._tell(self)
        return result

    return changed


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault"):
    setattr(AnswerDict, _name, _telling(_name))
AnswerDict.update = _telling("update")  # type: ignore[assignment,method-assign]


class FinalAnswers:
    """Puts the functions and the dict for answers into a namespace.

    `submit` sends an answer; its ValueError says why the host refuses it, and is raised in the
    cell. The functions in capitals are put back if a cell overwrites them; `final_answer` and
    `answer` are names that people give to variables of their own, and may be overwritten.
    """

    def __init__(self, namespace: Namespace, submit: Callable[[Answer], None]) -> None:
        self._namespace = namespace
        self._submit = submit
        self._told: tuple[str, JSON] | None = None
        for function in (*_capitals(self), _final_answer(self)):
            # The name that errors of a call and the display say, and not where it is defined.
            name = function.__qualname__ = function.__name__
            namespace.inject(name, function, protected=name.isupper())
        namespace.inject("answer", AnswerDict(self._tell))

    def poll(self) -> None:
        """Look at `answer` when a cell ends: it may be a new dict by now, or changed deep inside.

        A refusal is written to standard error, and `ready` is set to False.
        """
        held = self._namespace.globals.get("answer")
        if not issubclass(type(held), dict):
            return
        try:
            self._tell(held)  # type: ignore[arg-type]
        # Boundary: the cell has ended, and what its values do when they become text cannot be
        # raised in it any more.
        except Exception as error:  # noqa: BLE001
            problem = describe(error, 0)
            text = f"answer was not accepted: {problem.type}: {problem.message}\n"
            os.write(2, text.encode())

    def forget(self) -> None:
        """The host gave `answer` anew: what is told next is told, even if it was told before."""
        self._told = None

    def state(self) -> tuple[dict[Any, Any] | None, object]:
        """What a checkpoint keeps: what `answer` holds, unless a cell replaced it, and what was
        told of it."""
        held: Any = self._namespace.injected["answer"]
        ours = self._namespace.globals.get("answer") is held
        return (dict(held) if ours else None), self._told

    def restore(self, state: tuple[dict[Any, Any] | None, Any]) -> None:
        """Hold again what `state` returned; nothing is told that was told before."""
        content, self._told = state
        if content is not None:
            held: Any = self._namespace.injected["answer"]
            dict.update(held, content)

    def printed(self, text: str, last: bool) -> None:
        """Send the printed form that `text` begins with; an incomplete one is none.

        `last`: it was the cell's last expression, which is displayed and not printed.
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
            ValueError: it is too large, or the host refuses it.
            what `str(value)` raises.
        """
        text = _as_text(value)
        self._submit(Answer(form, text, _as_json(value), printed))
        return text

    def variable(self, name: object) -> object:
        """What FINAL_VAR means by `name`: the variable's value, or a value that is no name.

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
        # FINAL_VAR(x), where x holds text: the very object is that of a variable.
        if not key.isidentifier() or any(value is name for value in variables.values()):
            return name
        meant = near(key, variables)
        advice = f" Did you mean: {meant!r}?" if meant else " To answer with a text, use FINAL."
        raise NameError(f"FINAL_VAR: there is no variable {key!r}.{advice}")

    def show_variables(self) -> str:
        """The user's variables but `answer`, with their types, as text."""
        variables = self._namespace.variables()
        types = {name: type_name(value) for name, value in variables if name != "answer"}
        return f"Available variables: {types}" if types else "No variables created yet."

    def _tell(self, held: dict[Any, Any]) -> None:
        """Send what `answer` holds if it is ready and was not sent yet."""
        if not dict.get(held, "ready"):
            self._told = None
            return
        content = dict.get(held, "content", "")
        try:
            told = _as_text(content), _as_json(content)
            if told != self._told:
                self._submit(Answer("answer", *told))
                self._told = told
        except Exception:
            dict.__setitem__(held, "ready", False)
            raise


def _also_by(*names: str) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Let a function of one argument be called with that under other names, as in its dialects."""

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
    """The functions whose names are in capitals, as models know them."""

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
        else:  # the host has the schema, and puts them together
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
    """The value as JSON carries it, None if it cannot: NaN, an object, two keys that are one."""
    if id(type(value)) in _JSON_SCALARS:
        return value  # type: ignore[return-value]
    try:
        text = encoded(value, ascii_only=False, any_keys=True)
    # Boundary: classes of the user's may do anything when they are read. Their text is kept.
    except Exception:  # noqa: BLE001
        return None
    _check_size(text, "value")
    if more_values(text.encode("utf-8", "surrogatepass"), MAX_ANSWER_VALUES):
        raise ValueError(
            f"the answer has more than {MAX_ANSWER_VALUES:,} values, the most there can be"
        )
    found: JSON = _decode(text)
    return found


def _check_size(text: str, what: str) -> None:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_ANSWER:
        raise ValueError(
            f"the answer's {what} is larger than {MAX_ANSWER >> 20} MiB, the most there can be"
        )


_decode = json.JSONDecoder().decode

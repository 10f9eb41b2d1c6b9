"""Code in the text of a model without a fence or a tag."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from repl_env.parsing.python_source import PythonParser, tidied

_TARGET = r"\*?[A-Za-z_][\w.]*+(?>(?:\[[^\]\n]{0,200}\]){0,9})"
_CODE_LINE = re.compile(
    r"[ \t]++\S|[ \t]*+$|[@#)\]}\"']|>>>|\.\.\.|(?:import|from|def|class|for|while|if|elif|else|try"
    r"|except|finally|with|async|await|return|raise|assert|del|global|pass|break|continue|match"
    rf"|case)\b|{_TARGET}(?>(?:[ \t]*+,[ \t]*+{_TARGET}){{0,99}})(?:[ \t]*+:[^=\n]{{1,100}})?"
    r"[ \t]*+(?:[-+*%@&|^]|//?|\*\*|<<|>>)?=(?!=)|[\w.]++(?:\[[^\]\n]{0,200}\])?\("
)
_GIVES_ANSWER = re.compile(
    r"[ \t]*+(?:>>> )?(?:print\()?(?:FINAL|FINAL_VAR|SUBMIT|final_answer)[ \t]?\("
)


def bare_code(text: str, parser: PythonParser, known: Collection[str] = ()) -> str | None:
    """Return the code that is all of `text`, or a part that gives an answer; None for neither.

    Code must be plainly Python. `known` are the names in the session.
    """
    whole = tidied(text.strip("\n"))
    if parser.is_plainly_python(whole, known):
        return whole
    for part in _with_answers(text.split("\n")):
        code = tidied(part)
        if parser.is_plainly_python(code, known):
            return code
    return None


def is_code(code: str, parser: PythonParser, known: Collection[str] = ()) -> bool:
    """Return whether code marked with an unspecific name is Python to be run."""
    if gives_answer(code):
        return parser.is_python(code)
    return parser.is_plainly_python(code, known)


def gives_answer(code: str) -> bool:
    """Return whether a line of `code` calls one of the answer functions."""
    return any(_GIVES_ANSWER.match(line) for line in code.split("\n"))


def _with_answers(lines: list[str]) -> Iterator[str]:
    """Return the runs of code-like lines that contain one that gives an answer."""
    begin = 0
    for index in range(len(lines) + 1):
        if index < len(lines) and _CODE_LINE.match(lines[index]):
            continue
        part = lines[begin:index]
        if any(_GIVES_ANSWER.match(line) for line in part):
            yield "\n".join(part).strip("\n")
        begin = index + 1

"""A model's reply as a run uses it: code to run, or an answer in prose, or neither."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from repl_env.parsing.bare_code import gives_answer
from repl_env.parsing.code_blocks import find_code
from repl_env.parsing.prose_answer import ProseAnswer, answer_in, around_code, is_answer
from repl_env.parsing.python_source import PythonParser


@dataclass(frozen=True, slots=True)
class ReadReply:
    """The content of a reply: code to run, or an answer, or neither."""

    codes: list[str]
    answer: ProseAnswer | None = None


def read_reply(reply: str, known: Collection[str], *, last: bool = False) -> ReadReply:
    """Return the content of `reply`, which may be any text; no text raises.

    `known` are the names in the session. `last`: the model was asked for an answer without code, so
    an
    answer may stand in the middle of a line, and unmarked code may be the answer.
    """
    parser = PythonParser()
    found = find_code(reply, known, parser)
    if found.origin != "none" and (code := around_code(reply, parser)) is not None:
        return ReadReply([], answer_in(code, known, whole=reply, anywhere=last, parser=parser))
    if found.origin == "named" or (found.origin == "bare" and _is_run(found.codes, last)):
        return ReadReply(found.codes)
    text = "\n".join((found.prose, *(each for each in found.quoted if is_answer(each, parser))))
    answer = answer_in(text, known, whole=reply, anywhere=last, parser=parser)
    if found.origin == "unnamed" and not (answer and _is_quoted(found.codes, known, parser)):
        return ReadReply(found.codes)
    return ReadReply([], answer)


def _is_run(codes: Iterable[str], last: bool) -> bool:
    return not last or any(gives_answer(code) for code in codes)


def _is_quoted(codes: Iterable[str], known: Collection[str], parser: PythonParser) -> bool:
    """Return whether unnamed blocks hold results or an answer, and no code."""
    return not any(
        not is_answer(code, parser) and parser.is_plainly_python(code, known) for code in codes
    )

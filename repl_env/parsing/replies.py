"""A reply of a model as code or as an answer that it writes outside code."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from repl_env.parsing.blocks import find_code, gives_answer, without_reasoning
from repl_env.parsing.fences import MAX_CODE, PythonParser, computes, names_read, without_end_tokens

# Answers that a model writes outside code, although only code was requested.
#
# Untrained models do so in one of six turns (arXiv 2512.24601, appendix). Accepting such answers
# is safe: the text is the model's own, never printed by code.

# Markdown may quote a line, and has a backslash before `_`.
_BEGIN = r"^[ \t]*+(?>(?:>[ \t]*+)?)"
_CALL = (
    r"FINAL\\?_VAR\(\s*+(?:(?:var_name|variable_name|name)\s*+=\s*+)?"
    r"[\"'`\u201c\u2018]?(?P<name>\w+)[\"'`\u201d\u2019]?\s*+\)"
)
_VARIABLE = re.compile(_BEGIN + _CALL, re.MULTILINE)
_ANSWER = re.compile(_BEGIN + r"FINAL\(", re.MULTILINE)
_ANYWHERE = re.compile(r"\bFINAL\(")
_VARIABLE_ANYWHERE = re.compile(r"\b" + _CALL)
# A line that consists of an answer between Markdown marks or tags.
_DRESSED = re.compile(
    _BEGIN + r"(?:(?P<marks>[*_`]{1,3}+)|<(?P<tag>answer|final|final_answer|result)>)[ \t]*+"
    r"(?P<answer>FINAL(?:(?!(?P=marks)).)*\))"
    r"[ \t]*+(?(tag)</(?P=tag)>|(?P=marks))[.!]?[ \t]*+$",
    re.MULTILINE,
)
_PARENTHESIS = re.compile(r"[()]")
# Parentheses of enumerations and emoticons.
_UNPAIRED = re.compile(r"(?:^[ \t]*+(?:[-*+][ \t]++)?\w{1,3}|[:;]-?)\)", re.MULTILINE)
_NAMES = r"([A-Za-z_]\w*+(?>(?:[ \t]*+,[ \t]*+[A-Za-z_]\w*+){0,99}))"
# Names that lines of the text bind, as code does.
_BOUND = re.compile(
    r"(?:^[ \t>.]*+(?>(?:(?:[-*+]|\d{1,3}[.)])[ \t]++)?)|[>;:`][ \t]*+)"
    rf"(?:{_NAMES}[ \t]*+(?:[-+*%@&|^]|//?|\*\*|<<|>>)?=(?!=)"
    rf"|for[ \t]++{_NAMES}[ \t]++in\b|(?:def|class)[ \t]++(\w++)[ \t]*+[(:]"
    r"|(?:from[ \t]++[\w.]++[ \t]++)?import[ \t]++(\w++)[ \t]*+$)",
    re.MULTILINE,
)

_LITERAL = (
    ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop,
    ast.expr_context,
)  # fmt: skip
# A longer literal, or one with more parentheses, is found by counting them: each attempt parses it
# again.
_MAX_CLOSERS = 100


@dataclass(frozen=True, slots=True)
class ProseAnswer:
    """An answer in prose: a text, the name of a variable, or an expression to evaluate."""

    text: str
    is_variable: bool = False
    is_code: bool = False


def answer_in(
    prose: str,
    variables: Collection[str] = (),
    *,
    whole: str | None = None,
    anywhere: bool = False,
    parser: PythonParser | None = None,
) -> ProseAnswer | None:
    """Return the answer at the beginning of a line in a reply without code, if any.

    `variables` are the names in the session: `FINAL(total)` means one of these, and
    `FINAL(len(context))` is evaluated. A name that the text binds itself belongs to code that was
    not run, and is no answer; `whole` is the text that contains `prose`. `anywhere`: in the middle
    of a line too. The reasoning before a reply does not count.
    """
    prose = _DRESSED.sub(r"\g<answer>", without_reasoning(prose))
    variable = (_VARIABLE_ANYWHERE if anywhere else _VARIABLE).search(prose)
    answer = (_ANYWHERE if anywhere else _ANSWER).search(prose)
    if variable is not None and (answer is None or variable.start() < answer.start()):
        return ProseAnswer(variable["name"], is_variable=True)
    if answer is None:
        return None
    parser = parser or PythonParser()
    text = _inside(prose, answer.end(), parser).strip()
    return _parsed_answer(text, prose if whole is None else whole, variables, parser)


def around_code(text: str, parser: PythonParser) -> str | None:
    """Return the final answer in prose of `text`, if its first fence is inside that answer."""
    text = without_end_tokens(without_reasoning(text)).rstrip()
    start = _ANSWER.search(text)
    fence = text.find("```")
    if start is None or fence < start.end() or not is_answer(text[start.start() :], parser):
        return None
    return text[start.start() :]


def is_answer(text: str, parser: PythonParser) -> bool:
    """Return whether `text` is one answer in prose and nothing else."""
    text = text.strip()
    variable = _VARIABLE.match(text)
    if variable is not None:
        return variable.end() == len(text)
    answer = _ANSWER.match(text)
    if answer is None:
        return False
    return text[answer.end() + len(_inside(text, answer.end(), parser)) :] == ")"


def _parsed_answer(
    text: str, whole: str, variables: Collection[str], parser: PythonParser
) -> ProseAnswer | None:
    """Return the answer that `FINAL(text)` gives, if any."""
    value = parser.expression(text)
    if value is not None:
        if names_read(value) & _bound(whole):
            return None
        if text not in variables and computes(value, variables):
            one = f"({text})" if isinstance(value, ast.Tuple) else text
            return ProseAnswer(f"FINAL({one})", is_code=True)
    if text in variables:
        return ProseAnswer(text, is_variable=True)
    match value:
        case ast.Constant(value=str(quoted)):
            return ProseAnswer(quoted)
    return ProseAnswer(text)


def _bound(text: str) -> frozenset[str]:
    """Return the names that lines of the text bind."""
    found = (match[match.lastindex or 0].split(",") for match in _BOUND.finditer(text))
    return frozenset(name.strip() for names in found for name in names)


def _inside(text: str, start: int, parser: PythonParser) -> str:
    """Return the text between a parenthesis before `start` and its closing one."""
    for closer in islice(re.compile(r"\)").finditer(text, start), _MAX_CLOSERS):
        inside = text[start : closer.start()]
        if parser.used_up or len(inside) > MAX_CODE:
            break
        if _is_literal(parser.expression(inside.strip())):
            return inside
    unpaired = {found.end() - 1 for found in _UNPAIRED.finditer(text, start)}
    end = _closed(text, start, unpaired) or _closed(text, start, ())
    # Parentheses of prose need not be balanced; then the text reaches to the last one.
    end = text.rfind(")") if end is None else end
    return text[start:end] if end >= start else text[start:]


def _closed(text: str, start: int, unpaired: Collection[int]) -> int | None:
    """Return the position that closes a parenthesis before `start`; those `unpaired` close none."""
    depth = 1
    for found in _PARENTHESIS.finditer(text, start):
        if found.start() not in unpaired:
            depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return None


def _is_literal(value: ast.expr | None) -> bool:
    return value is not None and all(isinstance(node, _LITERAL) for node in ast.walk(value))


# A model's reply as a run uses it: code to run, or an answer in prose, or neither.


@dataclass(frozen=True, slots=True)
class ReadReply:
    """The content of a reply: code to run, or an answer, or neither."""

    codes: list[str]
    answer: ProseAnswer | None = None


def read_reply(reply: str, known: Collection[str], *, last: bool = False) -> ReadReply:
    """Return the content of `reply`, which may be any text; no text raises.

    `known` are the names in the session. `last`: the model was asked for an answer without code, so
    an answer may stand in the middle of a line, and unmarked code may be the answer.
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


def answer_beside(reply: str, known: Collection[str], *, last: bool = False) -> ProseAnswer | None:
    """Return the answer in the prose beside the code blocks of `reply`, which does not count.

    In the last reply it counts: the caller takes it when the code has run, and `known` are the
    names then.
    """
    parser = PythonParser()
    found = find_code(reply, known, parser)
    if found.origin == "bare":  # the prose is the code
        return None
    return answer_in(found.prose, known, whole=found.prose, anywhere=last, parser=parser)


def _is_run(codes: Iterable[str], last: bool) -> bool:
    return not last or any(gives_answer(code) for code in codes)


def _is_quoted(codes: Iterable[str], known: Collection[str], parser: PythonParser) -> bool:
    """Return whether unnamed blocks hold results or an answer, and no code."""
    return not any(
        not is_answer(code, parser) and parser.is_plainly_python(code, known) for code in codes
    )

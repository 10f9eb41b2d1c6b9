"""Texts that may be Python: parsed in bounded time, and cleaned up like a notebook cell.

CPython's parser rejects text in many ways, and takes some microseconds for each character. Texts
come from models, which may write anything of any length.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Collection

# Characters of one parsed text, and of all texts that one `PythonParser` parses: seconds of work.
MAX_CODE = 64 * 1024
MAX_IN_ALL = 8 * MAX_CODE
# The minimum cost of a text: there may be very many short ones.
_LEAST_COST = 64

# The file name of parsed texts, by which the filter below knows their warnings.
_FILE = "<reply>"

# The functions of a session. `FINAL` and `FINAL_VAR` also occur in prose and prove nothing.
_ANSWERS = ("FINAL", "FINAL_VAR")
_FUNCTIONS = frozenset(
    {
        "SUBMIT", "final_answer", "SHOW_VARS", "llm_query", "llm_query_batched", "llm_batch",
        "rlm_query", "rlm_query_batched", "rlm_spawn", "budget",
    }
) | {name for name in vars(builtins) if name.islower() and not name.startswith("_")}  # fmt: skip

_STATEMENTS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For,
    ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
    ast.AugAssign,
)  # fmt: skip

_PROMPT = re.compile(r"[ \t]*+(?:(?:>>>|\.\.\.:?|In ?\[\d*\]:)(?: |$)|>>>(?=\S))")
_FIRST_PROMPT = re.compile(r"[ \t]*+(?:>>>|In ?\[\d*\]:)")
_MARGIN = re.compile(r"[ \t]*+")
# Code without a prompt or an indent does not begin with these, and most code is such.
_UNTIDY = (" ", "\t", "\n", "\r", ">", "#", "In")


class PythonParser:
    """Parses texts up to `in_all` characters; rejects all later texts as unknown."""

    def __init__(self, in_all: int = MAX_IN_ALL) -> None:
        self._left = in_all

    @property
    def used_up(self) -> bool:
        """Whether the limit is reached."""
        return self._left < _LEAST_COST

    def tree(self, code: str) -> ast.Module | None:
        """Return the syntax tree of `code`; None if it is not Python, or too long."""
        cost = max(len(code), _LEAST_COST)
        if len(code) > MAX_CODE:
            return None
        if cost > self._left:
            self._left = 0  # otherwise copying unparsed texts would have no bound
            return None
        self._left -= cost
        _ignore_warnings()
        try:
            return ast.parse(code, _FILE)
        # Boundary: besides SyntaxError and ValueError the parser raises MemoryError and
        # RecursionError for deep nesting, and others depending on the version of CPython.
        except Exception:  # noqa: BLE001
            return None

    def is_python(self, code: str) -> bool:
        """Return whether `code` is known to be Python."""
        return not code.strip() or self.tree(code) is not None

    def is_plainly_python(self, code: str, known: Collection[str] = ()) -> bool:
        """Return whether `code` is more than prose that happens to be Python ("a or b").

        `known` are the names in the session.
        """
        tree = self.tree(code)
        if tree is None:
            return False
        made = names_made(tree)
        callable_names = _FUNCTIONS | made | frozenset(known)
        return any(_is_plain(node, callable_names, made) for node in tree.body)

    def expression(self, text: str) -> ast.expr | None:
        """Return the expression that `text` is, ignoring outer white space; None otherwise."""
        tree = self.tree(f"({text}\n)")
        match tree:
            case ast.Module(body=[ast.Expr(value=value)]):
                return value
        return None


def _ignore_warnings() -> None:
    """Suppress warnings about invalid escapes in texts that are only inspected.

    The filter stays installed, since `warnings.catch_warnings` is not thread-safe; it applies only
    to
    the file name of these texts.
    """
    first = warnings.filters[0] if warnings.filters else None
    if first is None or getattr(first[3], "pattern", None) != _FILE:
        warnings.filterwarnings("ignore", module=_FILE)


def names_made(tree: ast.AST) -> frozenset[str]:
    """Return the names that code binds anywhere."""
    made: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                made.add(name)
            case ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add((other or name).partition(".")[0])
    return frozenset(made)


def names_read(tree: ast.AST) -> frozenset[str]:
    """Return the names that code reads and does not bind."""
    loads = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return frozenset(loads - names_made(tree))


def computes(value: ast.expr, known: Collection[str]) -> bool:
    """Return whether an expression is meant to be evaluated, and is not just text.

    It has an f-string field, calls a function of the session or of Python, or is more than a name
    and
    uses only names of the session.
    """
    functions = _FUNCTIONS | frozenset(known)
    for node in ast.walk(value):
        match node:
            case ast.FormattedValue():
                return True
            case ast.Call(func=function) if _root(function) in functions:
                return True
    read = names_read(value) - _FUNCTIONS
    return bool(read) and not isinstance(value, ast.Name) and read <= frozenset(known)


def _is_plain(node: ast.stmt, functions: Collection[str], made: Collection[str]) -> bool:
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return not isinstance(value, ast.Name)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name in _ANSWERS:
            return any(names_read(argument) & frozenset(made) for argument in call.args)
        case ast.Expr(value=ast.Call(func=function)):
            return _root(function) in functions
    return isinstance(node, _STATEMENTS)


def _root(function: ast.expr) -> str:
    """Return the name that a called expression begins with.

    Methods of constants are Python's own.
    """
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        function = function.value
    match function:
        case ast.Name(id=name):
            return name
        case ast.Constant() | ast.JoinedStr():
            return "str"
    return ""


def tidied(code: str) -> str:
    """Return `code` without console prompts, or without its common indent.

    Neither can begin a cell of Python, so correct code stays as it is. In a console transcript,
    only the
    lines after prompts are code.
    """
    if not code.startswith(_UNTIDY):
        return code
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if _FIRST_PROMPT.match(first):
        prompts = ((line, _PROMPT.match(line)) for line in lines)
        return "\n".join(line[prompt.end() :] for line, prompt in prompts if prompt)
    code_lines = (line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    margin = _margin(next(code_lines, ""))
    if not margin:
        return code
    return "\n".join(_outdented(line, margin) for line in lines)


def _outdented(line: str, margin: str) -> str:
    if line.startswith(margin):
        return line[len(margin) :]
    return line[min(len(margin), len(_margin(line))) :]  # inside a string, for example


def _margin(line: str) -> str:
    found = _MARGIN.match(line)
    return found[0] if found else ""

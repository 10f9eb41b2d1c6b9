"""Evaluation of one cell: compile it, run it in the namespace, and display its last expression.

The code runs like the body of a module, in the dictionary of `__main__`. Any exception becomes the
result's error, and the session goes on.
"""

from __future__ import annotations

import os
import re
import sys
from ast import Expr, Expression, Module, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from ...types import ErrorInfo
from ..display.tracebacks import describe
from ..display.value_display import display
from ..namespace.cell_sources import cell_name, keep, source_line
from ..namespace.main_namespace import Namespace
from ..variables.printed_answers import install, rewrite
from .cell_warnings import REGISTRY, forget_shown
from .top_level_await import offer_loop, run_coroutine

_COROUTINE = 0x80  # CO_COROUTINE: the cell awaits at its top level
_FLAGS = PyCF_ALLOW_TOP_LEVEL_AWAIT
_TREE = PyCF_ONLY_AST | _FLAGS
# Compiler flags of `from __future__` statements, in the code that has them (Include/cpython/code.h:
# CO_FUTURE_DIVISION = 0x20000 up to CO_FUTURE_ANNOTATIONS = 0x1000000).
_FUTURE = 0x1FE0000

_no_text = re.compile("[\0\ud800-\udfff]").search
_line_ends = re.compile("\r\n?|\n")
_semicolon = re.compile(r"(?:[ \t\f]|\\\n)*;").match

# References taken once: the user may rebind these names.
_compile = compile
_eval = eval
_write = os.write
_modules = sys.modules


class CellRun(NamedTuple):
    """Result of a cell: its last expression as displayed, or the error that ended it.

    `status` is the exit status of a program with the same end, and `exit_text` its last message.
    """

    value: str | None
    error: ErrorInfo | None
    status: int = 0
    exit_text: str = ""


NOTHING = CellRun(None, None)


def run_cell(
    source: str,
    number: int,
    namespace: Namespace,
    printed: Callable[[str, bool], None] | None = None,
    before_first_code: Callable[[], None] | None = None,
) -> CellRun:
    """Run `source` as cell `number`. Never raises, except for an interrupt during its return.

    A last statement that is an expression is displayed, and bound to `_`, unless it is None or
    followed by a semicolon. `printed` is called with each printed form of an answer (see
    `printed_answers.py`) when it is evaluated, and with whether it is the cell's last expression;
    without `printed`, no such form is recognised. `before_first_code` is called when the code is
    compiled, and returns when it may run. Number 0 is none of the session's cells, and writes no
    output.
    """
    code: CodeType | list[CodeType] | None = None
    try:
        # Between two cells the message would land in an arbitrary cell's output.
        if namespace.protected and number:
            _put_back(namespace)
        everything = namespace.globals
        if REGISTRY in everything:
            forget_shown(everything)
        if not namespace.offers_loop and ("asyncio" in source or "asyncio" in _modules):
            offer_loop(source, namespace)
        line = source.isprintable()
        name = keep(number, source, line=line)
        if printed is not None:
            install(printed)
        forms = printed is not None and "FINAL" in source
        if line and not forms and namespace.check is None and _is_assignment(source):
            whole = _compile(source, name, "exec", _FLAGS | namespace.future, True)
            awaits = ("await" in source or "async" in source) and whole.co_flags & _COROUTINE
            code = [whole] if awaits else whole
        else:
            code = _compiled(source, name, namespace, forms=forms)
        if before_first_code is not None:
            before_first_code()
        value = _eval(code, everything) if type(code) is CodeType else _run(code, namespace)
        if value is None:
            return NOTHING
        namespace.show(value)
        return CellRun(display(value), None)
    # Boundary: every exception of the user's code, SystemExit and KeyboardInterrupt included, is a
    # result of the cell.
    except BaseException as error:  # noqa: BLE001
        raised = error if code is not None else _refused(error, source, number)
        info = describe(raised, number, namespace)
        return CellRun(None, info, *_end(raised, info))


def _is_assignment(line: str) -> bool:
    """Return whether `line` surely assigns to a name, as `x = f(1)`.

    Such a line has no last expression, so it is compiled from its text, which takes half the time
    of compiling a tree.
    """
    target, equals, _ = line.partition(" = ")
    return bool(equals) and target.isidentifier() and ";" not in line


def _end(error: BaseException, info: ErrorInfo) -> tuple[int, str]:
    if type(error) is not SystemExit:
        return 1, info.traceback
    code = error.code
    if code is None or type(code) in (int, bool):
        return int(code or 0) & 0xFF, ""
    return 1, f"{info.message}\n"


def _put_back(namespace: Namespace) -> None:
    for name in namespace.restore():
        _write(2, f"{name} belongs to the session and was put back\n".encode())


def _run(codes: list[CodeType], namespace: Namespace) -> object:
    """Run the parts of a cell; return the value of the last one, None for statements."""
    value: object = None
    for code in codes:
        if code.co_flags & _COROUTINE:
            # All parts, not only this one: code before an await may need the loop too.
            return run_coroutine(_run_awaiting(codes, namespace), namespace)
    for code in codes:
        value = _eval(code, namespace.globals)
    return value


async def _run_awaiting(codes: list[CodeType], namespace: Namespace) -> object:
    value: Any = None
    for code in codes:
        value = _eval(code, namespace.globals)
        if code.co_flags & _COROUTINE:
            value = await value
    return value


def _compiled(
    source: str, name: str, namespace: Namespace, *, forms: bool
) -> CodeType | list[CodeType]:
    """Return the code of a cell's statements, then that of a last expression if there is one.

    A cell in one part that awaits nothing is no list. `forms`: whether to recognise printed forms
    of an answer.

    Raises:
        PolicyError: the session's language policy refuses the cell.
        Exception: any exception of `compile`, see `_refused`.
    """
    tree = _compile(source, name, "exec", _TREE | namespace.future, True)
    shown = ";" not in source or not _ends_in_semicolon(tree, source)
    if forms:
        rewrite(tree)
    if namespace.check is not None:
        tree = namespace.check(tree)
    codes = _split(tree, name, namespace, shown=shown)
    return codes if len(codes) != 1 or codes[0].co_flags & _COROUTINE else codes[0]


def _ends_in_semicolon(tree: Module, source: str) -> bool:
    """Return whether a semicolon follows the last statement; IPython displays nothing then."""
    if not tree.body:
        return False
    last = tree.body[-1]
    lines = _line_ends.split(source)[(last.end_lineno or 1) - 1 :]
    lines[0] = lines[0].encode()[last.end_col_offset or 0 :].decode()
    return _semicolon("\n".join(lines)) is not None


def _split(tree: Module, name: str, namespace: Namespace, *, shown: bool) -> list[CodeType]:
    """Compile the statements, and separately the last one if it is an expression to display."""
    codes = []
    last = tree.body[-1] if tree.body and shown else None
    if isinstance(last, Expr):
        del tree.body[-1]
    if tree.body:
        codes.append(_compile(tree, name, "exec", _FLAGS | namespace.future, True))
        namespace.future |= codes[0].co_flags & _FUTURE
    if isinstance(last, Expr):
        tree_of_last = Expression(last.value)
        codes.append(_compile(tree_of_last, name, "eval", _FLAGS | namespace.future, True))
    return codes


def _refused(error: BaseException, source: str, number: int) -> BaseException:
    """Return the description of an error during compilation of a cell."""
    if isinstance(error, (SyntaxError, ValueError)):
        return _located(error, source, cell_name(number))
    if isinstance(error, (RecursionError, MemoryError)):
        message = "the source is nested too deeply, or too large, to be compiled"
        return SyntaxError(message, (cell_name(number), None, None, None))
    return error


def _located(error: SyntaxError | ValueError, source: str, name: str) -> SyntaxError | ValueError:
    """Return a clear error for source that is no Python text at all: with NUL or a lone surrogate.

    Errors that the compiler finds in a tree, such as 'return' outside of a function, get their
    line.
    """
    if isinstance(error, SyntaxError) and error.text is None:
        error.text = source_line(name, error.lineno)
    found = _no_text(source)
    if found is None or (isinstance(error, SyntaxError) and error.lineno is not None):
        return error
    character = "a NUL character" if found[0] == "\0" else f"the lone surrogate {found[0]!a}"
    line = source.count("\n", 0, found.start()) + 1
    return SyntaxError(f"the source contains {character}", (name, line, None, None))

"""The code of a cell, evaluated: `await` at its top level, the value of its last line, warnings."""

from __future__ import annotations

import os
import re
import sys
import warnings
from _contextvars import Context, copy_context
from _thread import get_ident
from ast import Expr, Expression, Module, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from threading import main_thread
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..types import PACKAGE_DIR, ErrorInfo
from . import namespace
from .answers import install, rewrite
from .displays import DISPLAYS, offer_display
from .imports import from_library, import_trusted
from .namespace import Namespace, cell_name, keep_cell, module_dict, source_line
from .tracebacks import describe, has_lines

if TYPE_CHECKING:
    import asyncio


# Warnings of cells: shown once in each cell, and never attributed to a file of the engine.
#
# Python shows a warning once for each line of a file, and every cell begins at line 1. A warning
# about the caller of the cell, or about something unused after it, would name the engine's
# module.

_OURS = f"{PACKAGE_DIR}/"
REGISTRY = "__warningregistry__"
_IMPLEMENTATION = "_showwarnmsg_impl"

_modules = sys.modules
_caller = sys._getframe

_show: Callable[[warnings.WarningMessage], None] = getattr(warnings, _IMPLEMENTATION)


def attribute_to_cells() -> None:
    """Show warnings as those of cells; called once, in the template."""
    # Not `warnings.showwarning`, which the user may replace, and which gets no source.
    setattr(warnings, _IMPLEMENTATION, _show_as_of_cell)


def forget_shown(globals_: dict[str, object]) -> None:
    """Show the next cell's warnings, whatever lines of earlier cells have warned of."""
    shown = globals_.get(REGISTRY)
    if type(shown) is dict:
        for key in [key for key in shown if _is_of_line(key)]:
            del shown[key]


def _is_of_line(key: object) -> bool:
    """Return whether a warning was recorded with its line, not once for all or per module."""
    return type(key) is tuple and len(key) == 3 and type(key[2]) is int and key[2] > 0


def _show_as_of_cell(message: Any) -> None:
    if "tracemalloc" not in _modules:
        # tracemalloc would be imported to ask whether it is on: during any collection, where the
        # import fails if it collects more.
        message.source = None
    if message.filename.startswith(_OURS):
        _forget_file(message.filename)
        message.filename, message.lineno = _place()
    _show(message)


def _place() -> tuple[str, int]:
    """Return the line of the running cell that began the calls, else its last line."""
    name, lines = namespace.latest_cell()
    place = (name, lines)
    frame = _caller()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == name:
            place = (name, frame.f_lineno)
    return place


def _forget_file(filename: str) -> None:
    """Forget that the engine's module at `filename` has warned: it warns on behalf of all cells."""
    for module in list(_modules.values()):
        if type(module) is ModuleType:
            names = module_dict(module)
            if names.get("__file__") == filename:
                names.pop(REGISTRY, None)


# Top-level `await`: coroutines of cells on one event loop that lives as long as the session.
#
# The loop runs only while a cell awaits. Tasks that one cell starts continue when a later one
# awaits; a cell that does not await may start tasks, too.

# Seconds for an interrupted cell to leave its `finally` blocks: less than the host waits between an
# interrupt and a kill (Limits.grace, 0.5 by default).
_CANCEL_GRACE = 0.2

_UNSET = object()
_replaced: list[asyncio.AbstractEventLoop] = []

# Functions of asyncio that start tasks on a running loop, and otherwise fail or use another loop.
# The rest of asyncio is unchanged: `asyncio.run` works in a cell that does not await, and libraries
# that ask for a running loop find none there.
_STARTERS = ("create_task", "ensure_future", "gather", "shield")

_imports_asyncio = re.compile(r"\b(?:import|from)\s+asyncio\b").search


def offer_loop(source: str, namespace: Namespace) -> None:
    """Let a cell that awaits nothing start tasks on the session's loop, if it imports asyncio.

    Called once, in the session's process, as soon as asyncio is loaded or `source` imports it.
    """
    if "asyncio" not in _modules and not _imports_asyncio(source):
        return
    if type(namespace.globals.get("__builtins__")) is dict:  # of a policy without `await`
        return
    namespace.offers_loop = True
    try:
        asyncio = import_trusted("asyncio")
        starters = {name: _starting(getattr(asyncio, name), namespace) for name in _STARTERS}
        finders = {"get_event_loop": _finding(asyncio.get_event_loop, namespace)}
        for name, replacement in {**starters, **finders}.items():
            setattr(asyncio, name, replacement)
        if namespace.ends_cell is not None:
            runner = import_trusted("asyncio.runners").Runner
            runner._on_sigint = _raising(runner._on_sigint, namespace.ends_cell)
    # Boundary: the session's code may have replaced the module, and the cell runs all the same.
    except Exception:  # noqa: BLE001
        pass


def _starting(function: Callable[..., Any], namespace: Namespace) -> Callable[..., Any]:
    """Return `function` with the session's loop as the running loop where none runs."""
    _set_running_loop = import_trusted("asyncio.events")._set_running_loop

    def start(*args: Any, **kwargs: Any) -> Any:
        if not _is_idle():
            return function(*args, **kwargs)
        _set_running_loop(_loop(namespace))
        try:
            return function(*args, **kwargs)
        finally:
            _set_running_loop(None)

    return _as(function, start)


def _finding(function: Callable[..., Any], namespace: Namespace) -> Callable[..., Any]:
    """Return `function` with the session's loop as current, unless code has set another."""

    def get_event_loop() -> Any:
        if _is_idle() and not _has_current():
            import_trusted("asyncio").set_event_loop(_loop(namespace))
        return function()

    return _as(function, get_event_loop)


def _raising(on_sigint: Callable[..., Any], ends_cell: Callable[[], bool]) -> Callable[..., Any]:
    """Return asyncio's handler of SIGINT, which obeys the host at once.

    asyncio cancels the main task and waits until it awaits. A time-out would have to kill the
    worker where a coroutine computes or sleeps, and the variables would be lost.
    """

    @wraps(on_sigint)
    def _on_sigint(*args: Any, **kwargs: Any) -> Any:
        if ends_cell():
            raise KeyboardInterrupt
        return on_sigint(*args, **kwargs)

    return _on_sigint


def _as(function: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    replacement = wraps(function)(replacement)
    replacement.__module__ = "asyncio"  # its import path, for pickle
    return replacement


def _is_idle() -> bool:
    """Return whether this is the thread of the cells, and no loop runs in it."""
    return (
        import_trusted("asyncio.events")._get_running_loop() is None
        and get_ident() == main_thread().ident
    )


def _has_current() -> bool:
    """Return whether the thread has a current loop; assumed for a policy of another class."""
    events = import_trusted("asyncio.events")
    local = getattr(vars(events).get("_event_loop_policy"), "_local", _UNSET)
    if local is _UNSET:
        return vars(events).get("_event_loop_policy") is not None
    loop = getattr(local, "_loop", None)
    return loop is not None and not loop.is_closed()


def run_coroutine(coroutine: Coroutine[Any, Any, object], namespace: Namespace) -> object:
    """Run a cell's coroutine to its end and return its value.

    Raises:
        Exception: any exception of the coroutine; KeyboardInterrupt or SystemExit from anything on
            the loop, after the coroutine was cancelled. The loop can be used again in every case.
    """
    loop = _loop(namespace)
    contexts: list[Context] = []
    task = loop.create_task(_noting(coroutine, contexts))
    try:
        return loop.run_until_complete(task)
    except BaseException as error:
        if not task.done():
            _cancel(loop, task)
        if task.done():
            _locate(error, task)
        raise
    finally:
        for context in contexts:
            _keep(context)


async def _noting(coroutine: Coroutine[Any, Any, object], contexts: list[Context]) -> object:
    """Run `coroutine`, and add its final context to `contexts`."""
    try:
        return await coroutine
    finally:
        contexts.append(copy_context())


def _keep(context: Context) -> None:
    """Apply a task's context variables to all later cells: a task runs in a copy of the context."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


def _locate(error: BaseException, task: asyncio.Task[object]) -> None:
    """Add the cell's waiting position to `error`, if it arrived while only the loop ran."""
    try:
        task.exception()  # retrieved here, so that the loop does not report it later
    except import_trusted("asyncio").CancelledError as cancelled:
        if not has_lines(error):
            error.__traceback__ = cancelled.__traceback__


def _loop(namespace: Namespace) -> asyncio.AbstractEventLoop:
    loop = namespace.loop
    if loop is None or loop.is_closed():
        # Imported on demand: sessions that never await do not pay for the module.
        with from_library():
            asyncio = import_trusted("asyncio")
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        loop.set_exception_handler(_complain)
        namespace.loop = loop
    return loop


def replace_loop(namespace: Namespace) -> list[str]:
    """In a process that has taken over: close the loop and its tasks; a new loop is made later.

    Its resources ended with the process of the loop, except handlers of signals.
    """
    loop = namespace.loop
    if loop is None or loop.is_closed():
        return []
    tasks = import_trusted("asyncio.tasks").all_tasks(loop)
    for task in tasks:
        with suppress(AttributeError):  # of another class
            task._log_destroy_pending = False  # reported once already
    handlers = dict(getattr(loop, "_signal_handlers", {}))
    if type(loop) is import_trusted("asyncio.unix_events").SelectorEventLoop:
        with suppress(Exception):  # session code has changed it
            loop.close()
    if not loop.is_closed():
        # A loop of another class may act on lost descriptors when it is collected.
        _replaced.append(loop)
    import_trusted("asyncio.events").set_event_loop(None)
    namespace.loop = None
    if handlers:  # otherwise made on demand: a branch may never await
        with suppress(Exception):  # a policy of session code: the next await reports its error
            new = _loop(namespace)
            for number, handle in handlers.items():
                new.add_signal_handler(number, handle._callback, *handle._args)
    return [f"task {task.get_name()!a}" for task in tasks]


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report exceptions that nobody awaited, except those that ended a cell through the loop.

    A task that an interrupt hit keeps it as its exception. The cell's outcome reported it; a report
    from the collector would land in an unrelated cell's output.
    """
    if not isinstance(context.get("exception"), (KeyboardInterrupt, SystemExit)):
        loop.default_exception_handler(context)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
    """Let a cancelled task finish, but no longer than the grace period.

    An interrupt may arrive inside the loop, between removing a step from its queue and running it;
    then the task is never scheduled again, and waiting for it alone would not end.
    """

    def stop(_: object) -> None:
        loop.stop()

    task.cancel()
    task.add_done_callback(stop)
    timer = loop.call_later(_CANCEL_GRACE, loop.stop)
    try:
        loop.run_forever()
    finally:
        timer.cancel()
        task.remove_done_callback(stop)  # otherwise it would stop the loop under a later cell


# Evaluation of one cell: compile it, run it in the namespace, and display its last expression.
#
# The code runs like the body of a module, in the dictionary of `__main__`. Any exception becomes
# the result's error, and the session goes on.

_COROUTINE = 0x80  # CO_COROUTINE: the cell awaits at its top level
_FLAGS = PyCF_ALLOW_TOP_LEVEL_AWAIT
_TREE = PyCF_ONLY_AST | _FLAGS
# Compiler flags of `from __future__` statements, in the code that has them (Include/cpython/code.h:
# CO_FUTURE_DIVISION = 0x20000 up to CO_FUTURE_ANNOTATIONS = 0x1000000).
_FUTURE = 0x1FE0000

_no_text = re.compile("[\0\ud800-\udfff]").search
_names_display = re.compile(r"(?<![\w.])display\b").search
_line_ends = re.compile("\r\n?|\n")
_semicolon = re.compile(r"(?:[ \t\f]|\\\n)*;").match

# References taken once: the user may rebind these names.
_compile = compile
_eval = eval
_write = os.write


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
    `answers.py`) when it is evaluated, and with whether it is the cell's last expression;
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
        if "display" in source and _names_display(source):
            offer_display()
        line = source.isprintable()
        name = keep_cell(number, source, line=line)
        if printed is not None:
            install(printed, everything)
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
        return CellRun(DISPLAYS.add_value(value), None)
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

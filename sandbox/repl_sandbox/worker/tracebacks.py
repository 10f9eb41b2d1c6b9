"""Description of a cell's exception as bounded text with the lines of the cell.

Frames of the library and of this package are left out. All others appear: frames of cells, of the
session's own modules, and of code given to `exec`, `eval` or `compile` under its file name. The
layout is that of the running Python. Describing an exception always ends and never raises, whatever
code of the exception runs meanwhile.
"""

from __future__ import annotations

import linecache
import os
import stat
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import FrameType, TracebackType
from typing import Any

from ..errors import PolicyError
from ..types import PACKAGE_DIR, ErrorInfo
from .hints import hint
from .imports import from_library
from .namespace import Namespace, cell_name, full_name, instance_dict, plain, put_back
from .preview import cut, encodable

# Frames at either end of a traceback: the call that began it and the line that failed.
_ENDS = 10
# Characters. A model reads a traceback and pays for each token.
_FRAME_LIMIT = 1 << 10
_BLOCK_LIMIT = 8 << 10
_TOTAL_LIMIT = 16 << 10
_MESSAGE_LIMIT = 4 << 10
# Number of causes, group members and notes that are followed.
_CHAIN = 8
_MEMBERS = 5
_GROUP_DEPTH = 3
_NOTES = 10

# Characters of a file whose lines are shown.
_FILE_LIMIT = 16 << 20

_CELLS = "<cell "
_user_files = (_CELLS, "/workspace/")
_library_files: tuple[str, ...] = (
    "<frozen ",
    f"{PACKAGE_DIR}/",
    f"{os.path.dirname(os.__file__)}/",
)

_HEADER = "Traceback (most recent call last):\n"
_CAUSED = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)

# References taken once: the user may rebind the names of the module.
_FrameSummary = traceback.FrameSummary
_StackSummary = traceback.StackSummary
_only = traceback.format_exception_only
_SYNTAX_ERRORS = frozenset(map(id, (SyntaxError, IndentationError, TabError)))

# Fields of an exception, which a class cannot shadow with properties.
_fields = vars(BaseException)
_get_cause: Any = _fields["__cause__"].__get__
_get_context: Any = _fields["__context__"].__get__
_get_suppress: Any = _fields["__suppress_context__"].__get__
_get_traceback: Any = _fields["__traceback__"].__get__
_get_members: Any = vars(BaseExceptionGroup)["exceptions"].__get__


def show_files_below(workspace: str) -> None:
    """Treat files below `workspace`, in an unusual place, as the user's."""
    global _user_files  # noqa: PLW0603 (set once, before any code runs)
    _user_files = (_CELLS, f"{workspace}/")


def hide_files_of_library() -> None:
    """In a template: leave out frames of files on the current `sys.path`."""
    global _library_files  # noqa: PLW0603 (set once, before any code runs)
    _library_files += tuple(f"{path}/" for path in sys.path if path)


def describe(error: BaseException, number: int, namespace: Namespace | None = None) -> ErrorInfo:
    """Return `error`, raised by cell `number`, for display. Never raises.

    The exception's `__str__` runs once; an exception from it is described in place of the message.
    With a `namespace`, a misspelt name gets a suggestion.
    """
    try:
        return _describe(error, cell_name(number), namespace)
    # Boundary: memory may be short, the user's classes can be hostile, and an interrupt can arrive
    # here. The kind of the error is reported in any case.
    except BaseException:  # noqa: BLE001
        kind = full_name(type(error))
        return ErrorInfo(kind, "", f"{kind}\n", None)


def _describe(error: BaseException, cell: str, namespace: Namespace | None) -> ErrorInfo:
    message = _message(error)
    frames = list(_user_frames(error))
    advice = _hint(error, namespace, frames[-1][0] if frames else None)
    with from_library():
        text = _chain(error, message)
    if advice:
        text = f"{cut(text, _TOTAL_LIMIT - len(advice) - 1)}{advice}\n"
    return ErrorInfo(
        full_name(type(error)),
        message,
        encodable(cut(text, _TOTAL_LIMIT)),
        _line(error, frames, cell),
    )


def _message(error: BaseException) -> str:
    try:
        text = str(error.msg) if id(type(error)) in _SYNTAX_ERRORS else str(error)  # type: ignore[attr-defined]
    # Boundary: this is code of the user's; even its SystemExit or an interrupt ends only this.
    except BaseException as problem:  # noqa: BLE001
        return f"<its message cannot be shown: __str__ raised {full_name(type(problem))}>"
    return encodable(cut(plain(text, sys.maxsize), _MESSAGE_LIMIT))


def _hint(error: BaseException, namespace: Namespace | None, frame: FrameType | None) -> str:
    try:
        return hint(error, namespace, frame)
    # Boundary: a hint reads objects that the user's code may be changing; the error stands without
    # one.
    except Exception:  # noqa: BLE001
        return ""


def _line(error: BaseException, frames: list[tuple[FrameType, int, int]], cell: str) -> int | None:
    """Return the innermost line of the cell that the error came from."""
    for frame, line, _ in reversed(frames):
        if frame.f_code.co_filename == cell:
            return line
    if id(type(error)) in _SYNTAX_ERRORS and error.filename == cell:  # type: ignore[attr-defined]
        line = error.lineno  # type: ignore[attr-defined]
        return line if type(line) is int else None
    if (
        type(error) is PolicyError and type(error.line) is int
    ):  # a cell can make such an error itself
        return error.line
    return None


def has_lines(error: BaseException) -> bool:
    """Return whether `error` passed through code of the user's."""
    return next(_user_frames(error), None) is not None


def _user_frames(error: BaseException) -> Iterator[tuple[FrameType, int, int]]:
    """Yield the frames of the user's code, outermost first, each with line and instruction."""
    trace: TracebackType | None = _get_traceback(error)
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename):
            yield trace.tb_frame, trace.tb_lineno, trace.tb_lasti
        trace = trace.tb_next


def _is_users(file: str) -> bool:
    return file.startswith(_user_files) or not file.startswith(_library_files)


def _chain(error: BaseException, message: str) -> str:
    """Return the exception after the exceptions that caused it."""
    blocks = [_block(error, message, 0)]
    seen = {id(error)}
    current = error
    for _ in range(_CHAIN):
        cause, link = _previous(current)
        if cause is None or id(cause) in seen:
            return "".join(reversed(blocks))
        seen.add(id(cause))
        blocks += [link, _block(cause, _message(cause), 0)]
        current = cause
    return "".join(reversed([*blocks, "[earlier exceptions left out]\n\n"]))


def _previous(error: BaseException) -> tuple[BaseException | None, str]:
    cause = _get_cause(error)
    if cause is not None:
        return cause, _CAUSED[0]
    return None if _get_suppress(error) else _get_context(error), _CAUSED[1]


def _block(error: BaseException, message: str, depth: int) -> str:
    """Return one exception with its frames, notes and members."""
    stack = _stack(error)
    text = (_HEADER + stack if stack else "") + _last_lines(error, message)
    text = cut(text, _BLOCK_LIMIT)
    if issubclass(type(error), BaseExceptionGroup):
        text += _group(_get_members(error), depth)
    return text


def _group(members: tuple[BaseException, ...], depth: int) -> str:
    """Return the members of an exception group, each behind a bar."""
    if depth >= _GROUP_DEPTH:
        return "  | ...\n"
    text = ""
    for index, member in enumerate(members[:_MEMBERS], 1):
        text += f"  +---------------- {index} ----------------\n"
        for line in _block(member, _message(member), depth + 1).splitlines():
            text += f"  | {line}\n"
    omitted = len(members) - _MEMBERS
    return text + (f"  +---- and {omitted} more\n" if omitted > 0 else "  +---\n")


def _stack(error: BaseException) -> str:
    """Return the frames of the user's code, without the middle of a deep recursion."""
    frames = _user_frames(error)
    head = list(islice(frames, _ENDS))
    tail: deque[tuple[FrameType, int, int]] = deque(maxlen=_ENDS)
    skipped = -_ENDS
    for frame in frames:
        tail.append(frame)
        skipped += 1
    marker = f"  [{skipped:,} frames left out]\n" if skipped > 0 else ""
    return _lines(head) + marker + _lines(tail)


def _lines(frames: list[tuple[FrameType, int, int]] | deque[tuple[FrameType, int, int]]) -> str:
    try:
        summaries = [_summary(frame, line, lasti) for frame, line, lasti in frames]
        texts = _StackSummary.from_list(summaries).format()
    # Boundary: the user may change the modules traceback and linecache. The positions are kept.
    except Exception:  # noqa: BLE001
        texts = [
            f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
            for frame, line, _ in frames
        ]
    return "".join(cut(text, _FRAME_LIMIT) for text in texts)


def _summary(frame: FrameType, line: int, lasti: int) -> traceback.FrameSummary:
    code = frame.f_code
    text = None if _has_lines(code.co_filename, frame.f_globals) else ""
    _, end_line, start, end = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    return _FrameSummary(
        code.co_filename,
        line,
        code.co_name,
        line=text,
        end_lineno=end_line,
        colno=start,
        end_colno=end,
    )


def _has_lines(file: str, globals_: dict[str, Any]) -> bool:
    """Load the current lines of `file` into linecache; False if it must not be read."""
    if file.startswith(_CELLS):
        put_back(file)
        return True
    with suppress(OSError, ValueError):  # usually there is no such file
        status = os.stat(file)
        # Reading a pipe might not end.
        if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_LIMIT:
            return False
    linecache.checkcache(file)
    linecache.lazycache(file, globals_)
    return True


def _last_lines(error: BaseException, message: str) -> str:
    """Return the exception's kind, message and notes; for a syntax error also the place."""
    if id(type(error)) in _SYNTAX_ERRORS:
        text = "".join(_only(error))
    else:
        kind = full_name(type(error))
        text = f"{kind}: {message}\n" if message else f"{kind}\n"
        text += "".join(f"{cut(note, _FRAME_LIMIT)}\n" for note in _notes(error))
    return text


def _notes(error: BaseException) -> list[str]:
    notes = dict.get(instance_dict(error) or {}, "__notes__")
    return [plain(note, _FRAME_LIMIT) for note in notes[:_NOTES]] if type(notes) is list else []

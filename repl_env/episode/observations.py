"""Observations from the outcomes of cells, and their text for a model."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from repl_env.common.values import replace_surrogates
from repl_env.models import CellDisplay, CodeBlockResult, EncodedFigure, trusted
from repl_sandbox.types import (
    AnyOutcome,
    Change,
    Display,
    ErrorInfo,
    Finished,
    Killed,
    KillReason,
    Outcome,
    Raised,
    State,
    TimedOut,
)

# Text as a terminal finally shows it: the last state of a progress bar, all else as written.
#
# The cursor movements of progress bars are rendered: carriage return, backspace, and of the
# escape sequences of ECMA-48 movements within and between lines and erasures to the end of a line
# or of the text. A line without movements stays as it was written, with a carriage return before
# its line feed and with colours. Absolute positioning and clearing of the screen are not
# rendered: they would hide output that nothing has replaced.
#
# There is no width: lines do not wrap, and each character takes one column. The cursor moves
# neither beyond the end of a line nor below the last line, so that the text does not grow. The
# work is linear in the text and bounded; beyond the bounds the text stays as it was written.

# A carriage return with text behind it, and no line feed.
_RETURN = re.compile(r"\r[^\r\n]")
# Control sequences, and titles and links, which take no room on the screen.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-Z]|[78=>])"
)
_MOVE = re.compile(r"\x08|\x1b\[[0-9]{0,9}[A-GJK]")
# Each alternative begins with a literal character, which speeds up the search.
_TOKEN = re.compile(rf"(\r\r*|\x08\x08*|{_ESCAPE.pattern})")

# More than any text has lines or columns.
_DIGITS = 9

# A state of a line matters only if no later one is as long, so older states do not.
_STATES = 1_000
# Bounds of the host's work on one stream: states of lines that only carriage returns redraw, with
# their escapes, and cursor movements of any kind, each some 50 ms; characters that are copied as
# lines change, 10 ms.
_MAX_STATES = 1 << 18
_STATES_OF_LINE = 6  # states that take as long as a line does in addition to its own cost
_MAX_MOVES = 1 << 16
_MAX_COPIED = 1 << 26


def as_shown(text: str) -> str:
    """Return `text` as a terminal shows it once all of it is written."""
    if not ("\r" in text or "\x08" in text or "\x1b" in text):
        return text
    begin = _last_moves(text)
    if _MOVE.search(text, begin):
        return _screened(text, begin)
    return _overlaid(text) if _RETURN.search(text) else _ended(text)


def _last_moves(text: str) -> int:
    """Return the position from which on there are at most `_MAX_MOVES` movements."""
    moves = text.count("\r") + text.count("\x08") + text.count("\x1b") + text.count("\n")
    if moves <= _MAX_MOVES or len(text) <= _MAX_MOVES:
        return 0
    begin = len(text) - _MAX_MOVES
    return text.find("\n", begin) + 1 or begin


def _ended(text: str) -> str:
    """Return `text` without carriage returns at its very end."""
    return text.rstrip("\r")


def _overlaid(text: str) -> str:
    """Return `text` with each line's states merged; the last lines first, up to a bound."""
    text = _ended(text)
    pieces: list[str] = []
    end, states_left = len(text), _MAX_STATES
    while states_left > 0 and (at := text.rfind("\r", 0, end)) >= 0:
        begin = text.rfind("\n", 0, at) + 1
        stop = text.find("\n", at, end)
        stop = end if stop < 0 else stop
        line = text[begin:stop]
        states = line.rsplit("\r", _STATES)[-_STATES:]
        states_left -= _STATES_OF_LINE + len(states) + sum(state.count("\x1b") for state in states)
        if states_left < 0:
            break
        pieces += [text[stop:end], _overlay(line, states)]
        end = begin
    return "".join(reversed([*pieces, text[:end]]))


def _overlay(line: str, states: list[str]) -> str:
    """Return the visible rest of `states`, each written over the last.

    `line` if only one is text.
    """
    if not any(states[1:]):
        return line
    if "\x1b" in line:
        states = [_ESCAPE.sub("", state) for state in states]
    shown = ""
    for state in reversed(states):
        if len(state) > len(shown):
            shown += state[len(shown) :]
    return shown.rstrip(" ")


def _screened(text: str, begin: int) -> str:
    """Return `text` with all movements from `begin` on made, or none if that copies too much."""
    screen = _Screen()
    try:
        for number, line in enumerate(_ended(text[begin:]).split("\n")):
            if number:
                screen.feed_line()
            screen.write_line(line)
    except _TooMuch:
        return text
    return text[:begin] + screen.text()


class _TooMuch(Exception):
    """The bound on copied characters is exceeded."""


class _Screen:
    """Lines and a cursor. A redrawn line holds no escapes; other lines stay as they came."""

    def __init__(self) -> None:
        self._lines = [""]
        self._redrawn: set[int] = set()
        self._row = self._column = 0
        self._copied = 0

    def text(self) -> str:
        """All lines; redrawn ones without the blanks that bars erase with."""
        for row in self._redrawn:
            if row < len(self._lines):
                self._lines[row] = self._lines[row].rstrip(" ")
        return "\n".join(self._lines)

    def feed_line(self) -> None:
        """Go to the next line, and make it if there is none."""
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._lines):
            self._lines.append("")
            self._redrawn.discard(self._row)  # of an erased line

    def write_line(self, text: str) -> None:
        """Write `text`, which has no line feed, with its movements."""
        if not self._lines[self._row] and not _MOVE.search(text) and not _RETURN.search(text):
            self._lines[self._row] = text
            self._column = len(text)
            return
        for index, token in enumerate(_TOKEN.split(text.rstrip("\r"))):
            if index % 2:
                self._obey(token)
            elif token:
                self._write(token)

    def _obey(self, control: str) -> None:
        if control[0] == "\r":
            self._column = 0
        elif control[0] == "\x08":
            self._column = max(0, self._column - len(control))
        elif control[1] == "[":
            number = control[2:-1][:_DIGITS]
            self._move(control[-1], int(number) if number.isdecimal() else None)

    def _line(self) -> str:
        """Return the line of the cursor, redrawn from here on."""
        row = self._row
        if row not in self._redrawn:
            self._redrawn.add(row)
            line = self._lines[row] = _ESCAPE.sub("", self._lines[row]).rstrip("\r")
            self._column = min(self._column, len(line))
        self._copied += len(self._lines[row])
        if self._copied > _MAX_COPIED:
            raise _TooMuch
        return self._lines[row]

    def _write(self, text: str) -> None:
        line, column = self._line(), min(self._column, len(self._lines[self._row]))
        self._lines[self._row] = line[:column] + text + line[column + len(text) :]
        self._column = column + len(text)

    def _move(self, final: str, number: int | None) -> None:
        count = max(1, number or 1)
        if final in "AF":
            self._row = max(0, self._row - count)
        elif final in "BE":
            self._row = min(len(self._lines) - 1, self._row + count)
        elif final == "C":
            self._column += min(count, len(self._line()))
        elif final == "D":
            self._column = max(0, self._column - count)
        elif final == "G":
            self._column = count - 1
        elif final in "KJ":
            self._erase(final, number or 0)
        if final in "EF":
            self._column = 0

    def _erase(self, final: str, number: int) -> None:
        """Erase to the end of the line, or all of it (K 2); or to the end of the text (J)."""
        if number == 0:
            self._lines[self._row] = self._line()[: self._column]
            if final == "J":
                del self._lines[self._row + 1 :]
        elif number == 2 and final == "K":
            self._line()
            self._lines[self._row] = ""
            self._column = 0


# Observations from the outcomes of cells.
#
# This module alone decides the `error_kind` of an outcome, the text of a failure, and the visible
# part of long output, rendered as on a terminal.

# Exceptions with their own kind: the policy can avoid each in its own way.
KIND_BY_EXCEPTION = {
    "SyntaxError": "syntax",
    "IndentationError": "syntax",
    "TabError": "syntax",
    "MemoryError": "memory",
    "_ArrayMemoryError": "memory",  # numpy's, and so pandas'
    "ArrowMemoryError": "memory",
    "PolicyError": "policy",
    "BudgetExceeded": "budget",
}

KIND_BY_REASON = {
    "memory": "memory",
    "cpu": "cpu",
    "processes": "processes",
    "workspace": "output",
    "output": "output",
    "exit": "crash",
    "signal": "crash",
    "protocol": "crash",
    "machine": "sandbox",  # the only death that code of the session cannot cause
}

TEXT_BY_CLOCK = {
    "execution": "TimeoutError: the code was stopped when its time was up",
    "host_call": "TimeoutError: the code was stopped while it waited for a call to the host",
}

TEXT_BY_REASON = {
    "memory": "MemoryError: the session used more memory than it may",
    "cpu": "TimeoutError: the session used more CPU time than it may",
    "processes": "OSError: the session started more processes than it may",
    "workspace": "OSError: the code wrote more files than it may; all its files were removed",
    "output": "OSError: the code wrote more output than it may",
    "exit": "SystemExit: the code ended the interpreter",
    "signal": "SystemError: the code crashed the interpreter",
    "protocol": "SystemError: the code broke the session's connection",
    "machine": "MemoryError: the machine ran out of memory, and the session was ended",
}

TEXT_BY_STATE: dict[State, str] = {
    "kept": "Variables are kept.",
    "rolled_back": "The session is back in the state before this code.",
    "restarted": "The session was restarted: variables are gone, the context is loaded again.",
}

# A worker can die between two cells, because of a thread that a cell left or because the system
# lacks memory. The next cell then runs in the recovered session, to its end or to an exception.
TEXT_BY_STATE_BEFORE: dict[State, str] = {
    "rolled_back": (
        "SystemError: the session died before this code ran, and went on from a copy of it: "
        "variables are as the last code left them."
    ),
    "restarted": (
        "SystemError: the session died and was restarted before this code ran: earlier variables "
        "are gone, and the context was loaded again only after it."
    ),
}

# A limit that struck outside the code: a child process, which the code may not have checked.
TEXT_BY_LIMIT: dict[KillReason, str] = {
    "memory": "MemoryError: the session's memory ran out, and processes of it were ended",
    "processes": "OSError: the session's processes became too many, and some did not start",
    "machine": "MemoryError: the machine ran out of memory, and ended processes of the session",
}


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """The reason why a cell did not finish: an `error_kind`, and the text for the policy.

    `traceback` is the text without its first line, where the traceback repeats it: a policy pays
    for each token that it reads.
    """

    kind: str
    text: str
    traceback: str = ""


def failure(outcome: AnyOutcome, memory: int | None = None) -> ObservedFailure | None:
    """Return the failure of a cell, or None. `memory`: bytes that its session may use, if known."""
    if isinstance(outcome, Finished):
        return None
    reason_of_death = _died_before(outcome)
    match outcome:
        case Raised():
            # A session dies by its own code, unless the kernel says that the machine had no memory.
            name = outcome.error.type if outcome.error else ""
            kind = KIND_BY_EXCEPTION.get(name, "exception")
            if "machine" in outcome.limits:
                kind = KIND_BY_REASON["machine"]
            return _raised(outcome, kind, reason_of_death)
        case TimedOut():
            text = f"{TEXT_BY_CLOCK[outcome.clock]}. {reason_of_death or _what_is_left(outcome)}"
            return ObservedFailure("timeout", _with_traceback(outcome, text))
        case Killed():
            reason = _with_number(TEXT_BY_REASON[outcome.reason], outcome.reason, memory)
            reason += f" ({outcome.signal_name})" if outcome.signal_name else ""
            text = f"{reason}. {_what_is_left(outcome)}"
            return ObservedFailure(KIND_BY_REASON[outcome.reason], _with_traceback(outcome, text))


def _raised(outcome: Raised, kind: str, reason_of_death: str) -> ObservedFailure:
    text = traceback = _with_traceback(outcome, "")
    if outcome.error is not None and _head(outcome.error) in outcome.error.traceback:
        traceback = replace_surrogates(outcome.error.traceback)
    if reason_of_death:
        text, traceback = (f"{on_new_line(each)}{reason_of_death}" for each in (text, traceback))
    return ObservedFailure(kind, text, traceback)


def _died_before(outcome: AnyOutcome) -> str:
    """Return the text for code that ran in a session that had died before; else ""."""
    if outcome.state == "kept" or isinstance(outcome, Killed):
        return ""
    ran = outcome.error is not None or outcome.changes or outcome.value is not None
    if isinstance(outcome, TimedOut) and not ran:
        return ""  # this cell was ended itself, and the state is its own
    return f"{TEXT_BY_STATE_BEFORE[outcome.state]}{_losses(outcome)}"


def _what_is_left(outcome: AnyOutcome) -> str:
    return f"{TEXT_BY_STATE[outcome.state]}{_losses(outcome)}"


def _losses(outcome: AnyOutcome) -> str:
    return (
        f" Not brought back: {replace_surrogates('; '.join(outcome.lost))}." if outcome.lost else ""
    )


def render(
    outcome: AnyOutcome,
    failed: ObservedFailure | None,
    *,
    cell: int,
    limit: int,
    memory: int | None = None,
) -> CodeBlockResult:
    """Return the outcome of cell number `cell`, with at most `limit` characters of each output.

    Output is rendered as on a terminal before it is cut. `memory` is as in `failure`.
    """
    stdout = as_shown(replace_surrogates(outcome.stdout)) if outcome.stdout else ""
    stderr = as_shown(replace_surrogates(outcome.stderr)) if outcome.stderr else ""
    # The session keeps the cell's own output, without the displayed value and the error text. It
    # comes first, so it is cut if it is longer than the head.
    head = limit - limit // 2
    name_of_stdout = _output_name(f"_out[{cell}]", outcome.stdout, stdout, head)
    name_of_stderr = _output_name(f"_out[{cell}].stderr", outcome.stderr, stderr, head)
    value = None if outcome.value is None else clip(replace_surrogates(outcome.value), limit)
    if outcome.value is not None:
        stdout = f"{on_new_line(stdout)}{replace_surrogates(outcome.value)}\n"
    for limit_hit in outcome.limits:
        if not (isinstance(outcome, Killed) and outcome.reason == limit_hit):
            text = _with_number(TEXT_BY_LIMIT[limit_hit], limit_hit, memory)
            stderr = f"{on_new_line(stderr)}{text}.\n"
    if failed is not None:
        stderr = f"{on_new_line(stderr)}{failed.traceback or failed.text}"
    elif reason_of_death := _died_before(outcome):
        stderr = f"{on_new_line(stderr)}{reason_of_death}"
    changes = list(map(_change_fields, outcome.changes))
    return trusted(
        CodeBlockResult,
        stdout=clip(stdout, limit, name_of_stdout),
        stderr=clip(stderr, limit, name_of_stderr),
        locals_snapshot=_previews(changes) if changes else {},
        execution_time=outcome.usage.execution_seconds,
        success=failed is None,
        exception=None if failed is None else clip(failed.text, limit),
        value=value,
        changes=changes,
        figures=list(map(_in_base64, outcome.figures)),
        displays=list(map(_as_model, outcome.displays)),
        truncated=len(stdout) > limit or len(stderr) > limit,
    )


def _with_number(text: str, limit: KillReason, memory: int | None) -> str:
    """Return `text` about a limit, with the memory limit as a number."""
    if limit != "memory" or memory is None:
        return text
    return f"{text} (the limit is {memory / (1 << 20):,.0f} MiB)"


def _output_name(name: str, original: str, visible: str, limit: int) -> str | None:
    """Return the name of the whole output, for the mark in its clipped form, or None."""
    if len(visible) <= limit:
        return None
    return name if len(original) == len(visible) else f"{name} as it was written"


def _change_fields(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "name": change.name,
        "type": replace_surrogates(change.type),
        "size": change.size,
        "preview": replace_surrogates(change.preview),
    }


def _previews(changes: Iterable[dict[str, Any]]) -> dict[str, str]:
    return {row["name"]: row["preview"] for row in changes if row["kind"] != "deleted"}


def _in_base64(figure: bytes) -> EncodedFigure:
    return EncodedFigure(base64.b64encode(figure).decode("ascii"))


def _as_model(display: Display) -> CellDisplay:
    return trusted(
        CellDisplay,
        text=replace_surrogates(display.text),
        forms={form: replace_surrogates(text) for form, text in display.forms.items()},
        is_value=display.is_value,
    )


def clip(text: str, limit: int, rest_name: str | None = None) -> str:
    """Return `text` if it is short, else its head and tail.

    A mark in the middle says where the whole text is: `rest_name`, if there is one.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    rest = f"; the rest is in {rest_name}" if rest_name else ""
    mark = f"\n... (truncated, total {len(text)} chars{rest}) ...\n"
    return text[: limit - tail] + mark + text[len(text) - tail :]


def on_new_line(text: str) -> str:
    """Return `text` with a final newline, so that the next part begins a line."""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _head(error: ErrorInfo) -> str:
    """Return class and message of an error, as tracebacks end."""
    return f"{error.type}: {error.message}" if error.message else error.type


def _with_traceback(outcome: Outcome, first: str) -> str:
    if outcome.error is None:
        return first
    error, head = outcome.error, first or _head(outcome.error)
    return replace_surrogates(f"{head}\n{error.traceback}" if error.traceback else head)

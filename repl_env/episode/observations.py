"""Observations from the outcomes of cells.

This module alone decides the `error_kind` of an outcome, the text of a failure, and the visible
part
of long output, rendered as on a terminal.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from repl_env.common.encoded_figure import EncodedFigure
from repl_env.common.json_values import replace_surrogates
from repl_env.episode.terminal_rendering import as_shown
from repl_env.models import CodeBlockResult, trusted
from repl_sandbox.types import (
    AnyOutcome,
    Change,
    Finished,
    Killed,
    KillReason,
    Outcome,
    Raised,
    State,
    TimedOut,
)

# Exceptions with their own kind: the policy can avoid each in its own way.
KIND_BY_EXCEPTION = {
    "SyntaxError": "syntax",
    "IndentationError": "syntax",
    "TabError": "syntax",
    "MemoryError": "memory",
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
}

# A host call that never returns is the fault of a sub-model or tool on the host.
KIND_BY_CLOCK = {"execution": "timeout", "host_call": "llm"}

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
}


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """The reason why a cell did not finish: an `error_kind`, and the text for the policy."""

    kind: str
    text: str


def failure(outcome: AnyOutcome, memory: int | None = None) -> ObservedFailure | None:
    """Return the failure of a cell, or None. `memory`: bytes that its session may use, if known."""
    if isinstance(outcome, Finished):
        return None
    reason_of_death = _died_before(outcome)
    match outcome:
        case Raised():
            if outcome.state == "restarted" or (reason_of_death and outcome.lost):
                # The lost state may have caused the exception, so the failure counts as
                # infrastructure.
                return ObservedFailure("sandbox", _with_traceback(outcome, reason_of_death))
            name = outcome.error.type if outcome.error else ""
            text = _with_traceback(outcome, "")
            kind = KIND_BY_EXCEPTION.get(name, "exception")
            return ObservedFailure(
                kind, f"{on_new_line(text)}{reason_of_death}" if reason_of_death else text
            )
        case TimedOut():
            text = f"{TEXT_BY_CLOCK[outcome.clock]}. {reason_of_death or _what_is_left(outcome)}"
            return ObservedFailure(KIND_BY_CLOCK[outcome.clock], _with_traceback(outcome, text))
        case Killed():
            reason = _with_number(TEXT_BY_REASON[outcome.reason], outcome.reason, memory)
            text = f"{reason}. {_what_is_left(outcome)}"
            return ObservedFailure(KIND_BY_REASON[outcome.reason], _with_traceback(outcome, text))


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
        stderr = f"{on_new_line(stderr)}{failed.text}"
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


def message_result(stdout: str, error: str | None = None) -> CodeBlockResult:
    """Return a result without a cell: a message of the environment, or a refusal."""
    return trusted(
        CodeBlockResult,
        stdout=stdout,
        stderr=error or "",
        locals_snapshot={},
        execution_time=0.0,
        success=error is None,
        exception=error,
        value=None,
        changes=[],
        figures=[],
        truncated=False,
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


def _with_traceback(outcome: Outcome, first: str) -> str:
    if outcome.error is None:
        return first
    error = outcome.error
    head = first or (f"{error.type}: {error.message}" if error.message else error.type)
    return replace_surrogates(f"{head}\n{error.traceback}" if error.traceback else head)

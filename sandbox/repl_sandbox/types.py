"""The engine's vocabulary: limits, policies and outcomes. Frozen values, standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .displayed import Displayed
from .language_policy import Policy
from .session_limits import Limits
from .set_module import set_module

__all__ = [
    "Answer",
    "Change",
    "ErrorInfo",
    "Figure",
    "File",
    "Finished",
    "Isolation",
    "Killed",
    "Layer",
    "Limits",
    "Listing",
    "Missing",
    "Outcome",
    "Policy",
    "Raised",
    "Statistics",
    "TimedOut",
    "Usage",
    "Variable",
]

# The directory of this package.
PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__))

JSON: TypeAlias = "None | bool | int | float | str | list[JSON] | dict[str, JSON]"

State: TypeAlias = Literal["kept", "rolled_back", "restarted"]
Clock: TypeAlias = Literal["execution", "host_call"]
KillReason: TypeAlias = Literal[
    "memory", "cpu", "processes", "workspace", "output", "exit", "signal", "protocol"
]
# "arguments": several arguments of SUBMIT, as {"values": [...], "fields": {...}}.
AnswerForm: TypeAlias = Literal[
    "FINAL", "FINAL_VAR", "SUBMIT", "arguments", "final_answer", "answer", "printed"
]
Answers: TypeAlias = Literal["compatible", "strict"]
FileKind: TypeAlias = Literal["file", "directory", "symlink", "other"]

# The names that a session with answers has for them (`worker/variables/final_answers.py`).
ANSWER_NAMES = ("answer", "FINAL", "FINAL_VAR", "SUBMIT", "final_answer", "SHOW_VARS")


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class ErrorInfo(Displayed):
    """An exception that a cell raised. `line` is the line of the cell, or None."""

    type: str
    message: str
    traceback: str
    line: int | None


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Variable(Displayed):
    """A variable of a session. `size` is shallow, in bytes; `preview` is short and may be cut."""

    name: str
    type: str
    size: int
    preview: str


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Missing(Displayed):
    """A variable of a session that a checkpoint, or the session restored from it, lacks.

    A name in parentheses stands for other state than a variable, as "(random)".
    """

    name: str
    type: str
    reason: str


# The name of the last change when there are more than are listed: no variable can have it.
MORE_CHANGES = "..."


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Change(Displayed):
    """A variable that a cell made, changed or deleted.

    Under the name `MORE_CHANGES` its `preview` is the number of further changes.
    """

    kind: Literal["new", "modified", "deleted"]
    name: str
    type: str
    size: int
    preview: str


# Without slots, like the outcomes: `session/cells/cell_execution.py` sets their fields directly.
@set_module("repl_sandbox")
@dataclass(frozen=True)
class Usage:
    """The resources that a cell used, as the host measured them; the session reports `peak_memory`.

    `peak_memory` is the largest resident size so far, in bytes. `cpu_seconds` may include CPU time
    below 5 ms that threads of the code used between the last cell and this one. For a cell of less
    than 0.1 ms it may be the cell's whole duration.
    """

    execution_seconds: float = 0.0
    waiting_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Answer(Displayed):
    """A final answer that a cell gave.

    `text` is the answer as text and `value` as JSON (None where JSON cannot carry it). For the form
    "printed", `printed` is the text that must stand at the start of a line of stdout for the answer
    to count, or None if the cell's last expression was that text.
    """

    form: AnswerForm
    text: str
    value: JSON = None
    printed: str | None = None


@set_module("repl_sandbox")
@dataclass(frozen=True, repr=False)
class Outcome(Displayed):
    """The outcome of a cell; one of `Finished`, `Raised`, `TimedOut`, `Killed`.

    `limits`: the limits that the kernel has enforced on processes of the session since the last
    outcome, whatever the outcome is: "memory" if it killed one, "processes" if it refused a fork.
    Known only in a session that has a cgroup. `state`: the session's state now: "kept", as the cell
    left it; "rolled_back", as before the cell; "restarted", empty. `lost`: descriptions of what
    could not be restored with that state, such as threads, child processes and connections.
    """

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: ErrorInfo | None = None
    changes: tuple[Change, ...] = ()
    figures: tuple[Figure, ...] = ()
    answers: tuple[Answer, ...] = ()
    usage: Usage = Usage()
    state: State = "kept"
    limits: tuple[KillReason, ...] = field(default=(), kw_only=True)
    lost: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def ok(self) -> bool:
        """True if the cell ran to its end."""
        return isinstance(self, Finished)


@set_module("repl_sandbox")
@dataclass(frozen=True, repr=False)
class Finished(Outcome):
    """The cell ran to its end. `value` is its last expression as a REPL displays it."""


@set_module("repl_sandbox")
@dataclass(frozen=True, repr=False)
class Raised(Outcome):
    """The cell raised, or could not be compiled; `error` has the exception and the line."""


@set_module("repl_sandbox")
@dataclass(frozen=True, repr=False)
class TimedOut(Outcome):
    """A clock stopped the cell: its own execution time, or the time of its host calls."""

    clock: Clock = "execution"


@set_module("repl_sandbox")
@dataclass(frozen=True, repr=False)
class Killed(Outcome):
    """The process that ran the cell is gone; `reason` names the limit or the event."""

    reason: KillReason = "exit"


AnyOutcome: TypeAlias = "Finished | Raised | TimedOut | Killed"


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class File(Displayed):
    """An entry of a session's workspace, as the session reports it: untrusted data.

    `path` is relative to the workspace; bytes that are not UTF-8 appear as surrogates, as
    `os.fsdecode` has them. `size` is that of a file in bytes (perhaps sparse), else 0. `modified`:
    seconds since 1970.
    """

    path: str
    size: int
    kind: FileKind
    modified: float


@set_module("repl_sandbox")
class Figure(bytes):
    """A picture that a cell has drawn: the bytes of a PNG file, which a notebook shows."""

    __slots__ = ()

    @property
    def png(self) -> bytes:
        """The bytes of the PNG file."""
        return bytes(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the PNG file `path`, which is replaced if there is one."""
        with open(path, "wb") as file:
            file.write(self)

    def __repr__(self) -> str:
        return f"<Figure, {len(self):,} bytes of PNG>"

    def _repr_png_(self) -> bytes:
        return self.png


@set_module("repl_sandbox")
class Listing(tuple[File, ...]):  # noqa: SLOT001 - a tuple has no room for slots with values
    """The entries of a workspace by path. `complete` is False if a bound left some out."""

    complete: bool

    def __new__(cls, files: Iterable[File], *, complete: bool = True) -> Listing:
        """Keep `files` in their order."""
        self = super().__new__(cls, files)
        self.complete = complete
        return self

    def __repr__(self) -> str:
        noun = "entry" if len(self) == 1 else "entries"
        return f"<Listing, {len(self):,} {noun}, complete={self.complete}>"

    def _repr_html_(self) -> str:
        from .object_display import html_of_rows

        return html_of_rows(self, self)


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Layer(Displayed):
    """One layer of isolation, as found by probing a session: `active`, and the observation."""

    name: str
    active: bool
    detail: str


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Isolation(Displayed):
    """The isolation tier of a session, and its layers as probed, not as configured."""

    tier: str
    layers: tuple[Layer, ...]


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True)
class Statistics:
    """A sandbox at one moment: the numbers of sessions open, ready in the pool, and started so
    far.
    """

    open: int
    ready: int
    started: int

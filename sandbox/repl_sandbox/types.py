"""The engine's vocabulary: limits, policies and outcomes. Frozen values, standard library only."""

from __future__ import annotations

import keyword
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from .display import Displayed, set_module

# `Policy`: the part of Python that the cells of a sandbox may use.

Language: TypeAlias = Literal["full", "lint", "restricted"]

LANGUAGES: tuple[Language, ...] = ("full", "lint", "restricted")

# A policy travels in the message that starts a template, and people read it when it refuses code.
_MAX_NAMES = 256
_LONGEST_NAME = 100


@set_module("repl_sandbox")
@dataclass(frozen=True)
class Policy:
    """The part of Python that the cells of a sandbox may use: a rule for well-meant code, not
    isolation.

    `language`: "full", all of it; "lint", a check of each cell's syntax tree before it runs;
    "restricted", RestrictedPython compiled in the session, with modules behind proxies. `imports`:
    the modules that may be imported; a name allows its submodules. None is all of them under
    "lint", and the default rows of `repl_sandbox.policies.modules` under "restricted".
    `calls_denied`: functions that may not be called, as "eval" or "os.system"; a module or class
    stands for everything in it. Forbidden code raises `PolicyError` in the cell.

    Raises:
        TypeError, ValueError: naming the field.
    """

    language: Language = "full"
    imports: Iterable[str] | None = None
    calls_denied: Iterable[str] = ()

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(
                f"language must be one of {', '.join(LANGUAGES)}, not {self.language!r}"
            )
        if self.imports is not None:
            object.__setattr__(self, "imports", _dotted_names(self.imports, "imports"))
        object.__setattr__(self, "calls_denied", _dotted_names(self.calls_denied, "calls_denied"))
        for name, is_set in (
            ("imports", self.imports is not None),
            ("calls_denied", self.calls_denied),
        ):
            if is_set and self.language == "full":
                raise ValueError(
                    f"{name} has no effect under language='full'; use 'lint' or 'restricted'"
                )


def _dotted_names(names: Iterable[str], field_name: str) -> tuple[str, ...]:
    """Return `names` without repetitions and sorted, so that equal policies are equal values."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{field_name} must be a list of names, not {type(names).__name__}")
    from unicodedata import normalize  # not loaded in sessions

    checked = set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{field_name}: {name!r} must be a str, not {type(name).__name__}")
        parts = name.split(".")
        # The parser normalises identifiers; a name in another form would never match.
        if (
            len(name) > _LONGEST_NAME
            or normalize("NFKC", name) != name
            or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        ):
            raise ValueError(f"{field_name}: {name!r} is not a name, or names joined by dots")
        checked.add(name)
    if len(checked) > _MAX_NAMES:
        raise ValueError(f"{field_name} has {len(checked):,} names; the limit is {_MAX_NAMES}")
    return tuple(sorted(checked))


# `Limits`: the limits of one session; sizes and times as callers write them.

_UNITS = {"": 1, **{unit: 1000**n for n, unit in enumerate("KMGT", 1)}}
_UNITS |= {f"{unit}I": 1024**n for n, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


# No machine has more, and the kernel's signed 64-bit sizes could overflow.
_LARGEST = 1 << 50


def parse_size(size: int | str, name: str = "size") -> int:
    """Return the bytes of `size`: an int, or text such as "512MiB" or "1.5 GB"; at most 1 PiB.

    Raises:
        TypeError, ValueError: naming the argument `name`.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(
            f"{name} must be an int or a str such as '512MiB', not {type(size).__name__}"
        )
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise ValueError(f"{name}={size!r} is not a size; write bytes or for example '512MiB'")
        size = int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    if not 0 < size <= _LARGEST:
        raise ValueError(f"{name} must be more than 0 and at most 1 PiB")
    return size


# PID_MAX_LIMIT: the number of process ids on a 64-bit Linux.
_MAX_COUNTED = 1 << 22
# The stack of one thread is 8 MiB, and an ordinary cell with its snapshot and a child process takes
# some more: with less, whether a cell works depends on the allocator's luck.
_MIN_MEMORY = 16 << 20


@set_module("repl_sandbox")
@dataclass(frozen=True)
class Limits:
    """The limits of one session. Sizes are bytes or text such as "512MiB"; times are seconds.

    `memory` (at least 16 MiB) counts all processes of the session beyond the template it was forked
    from; `open_files` is of each process, three of them reserved for recovery, and at most half of
    this process's own where sessions share its user (`ulimit -n`); `cpu_seconds` (None: no limit)
    counts over the session's life; `output` bounds the kept output of a session. A cell may execute
    for `timeout`, is then interrupted, and has `grace` to end; its calls of host functions may take
    `host_timeout` in all.
    """

    memory: int | str = "1GiB"
    processes: int = 64
    open_files: int = 256
    file_size: int | str = "256MiB"
    workspace: int | str = "256MiB"
    output: int | str = "64MiB"
    cpu_seconds: float | None = None
    timeout: float = 30.0
    grace: float = 0.5
    host_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("memory", "file_size", "workspace", "output"):
            object.__setattr__(self, name, parse_size(getattr(self, name), name))
        if int(self.memory) < _MIN_MEMORY:
            raise ValueError(f"memory must be at least {_MIN_MEMORY >> 20} MiB")
        for name, least in (("processes", 1), ("open_files", 16)):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int):
                raise TypeError(f"{name} must be an int, not {type(count).__name__}")
            if not least <= count <= _MAX_COUNTED:
                raise ValueError(f"{name} must be from {least} to {_MAX_COUNTED:,}")
        for name in ("timeout", "grace", "host_timeout"):
            object.__setattr__(self, name, check_seconds(getattr(self, name), name))
        if self.cpu_seconds is not None:
            object.__setattr__(self, "cpu_seconds", check_seconds(self.cpu_seconds, "cpu_seconds"))


def check_seconds(value: float, name: str) -> float:
    """Return `value`, a number of any type, as a float; raise TypeError or ValueError for a bad
    time.

    A time is finite and above 0.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several numbers, or 10**400
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{name} must be a finite number of seconds above 0")
    return seconds


# The largest seed that the session's process accepts; a larger one would break the protocol.
_MAX_SEED = (1 << 63) - 1


def check_seed(seed: int | None) -> int | None:
    """Return `seed` as an int, or None; else raise TypeError, or ValueError for 2**63 and more.

    Integers of any type: seeds are often drawn, and numpy draws its own integer types.
    """
    if seed is None:
        return None
    try:
        drawn = -1 if isinstance(seed, bool) else index(seed)
    except TypeError:
        drawn = -1
    if drawn < 0:
        raise TypeError(f"seed must be an int of at least 0, not {seed!r}")
    if drawn > _MAX_SEED:
        raise ValueError("seed must be less than 2**63")
    return drawn


__all__ = [
    "Answer",
    "Change",
    "Display",
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
    "VariableList",
]

# The directory of this package.
PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__))

JSON: TypeAlias = "None | bool | int | float | str | list[JSON] | dict[str, JSON]"

State: TypeAlias = Literal["kept", "rolled_back", "restarted"]
Clock: TypeAlias = Literal["execution", "host_call"]
KillReason: TypeAlias = Literal[
    "memory", "cpu", "processes", "workspace", "output", "exit", "signal", "protocol", "machine"
]
# "arguments": several arguments of SUBMIT, as {"values": [...], "fields": {...}}.
AnswerForm: TypeAlias = Literal[
    "FINAL", "FINAL_VAR", "SUBMIT", "arguments", "final_answer", "answer", "printed"
]
Answers: TypeAlias = Literal["compatible", "strict"]
FileKind: TypeAlias = Literal["file", "directory", "symlink", "other"]

# The names that a session with answers has for them (`worker/answers.py`).
ANSWER_NAMES = ("answer", "FINAL", "FINAL_VAR", "SUBMIT", "final_answer", "SHOW_VARS")
# Content of the dict `answer` at the beginning of an episode.
NO_ANSWER: Mapping[str, object] = MappingProxyType({"content": "", "ready": False})


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
class VariableList(list[Variable]):
    """The variables of a session: a list, and a table in notebooks, in IPython and by `print`."""

    def __repr__(self) -> str:
        return f"<VariableList, {len(self):,} variable{'' if len(self) == 1 else 's'}>"

    def __str__(self) -> str:
        from .display import text_of_rows

        rows = ({name: getattr(each, name) for name in _COLUMNS} for each in self)
        return text_of_rows(rows) or "no variables"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from .display import html_of_rows

        return html_of_rows(self, self)


_COLUMNS = ("name", "type", "size", "preview")


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


# Without slots, like the outcomes: `session/cells.py` sets their fields directly.
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
    outcome, whatever the outcome is: "memory" if it killed one, "processes" if it refused a fork,
    "machine" if it killed one below the session's limit, because the machine (or the container
    around the host) had no memory. Known only in a session that has a cgroup. `state`: the
    session's state now: "kept", as the cell left it; "rolled_back", as before the cell;
    "restarted", empty. `lost`: descriptions of what could not be restored with that state, such as
    threads, child processes and connections.
    `died_before`: how the process that runs the cells died after the cell before, because of a
    thread or a child process that cells had left, or for want of memory; else None. `displays`:
    the rich forms, other than PNG, of the value and of what the cell displayed; `figures`: the
    pictures.
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
    died_before: KillReason | None = field(default=None, kw_only=True)
    displays: tuple[Display, ...] = field(default=(), kw_only=True)

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
    """The process that ran the cell is gone; `reason` names the limit or the event.

    `signal` is the number of the signal that ended the process where the reason is "signal", as
    `signal.SIGSEGV`, else 0.
    """

    reason: KillReason = "exit"
    signal: int = 0

    @property
    def signal_name(self) -> str:
        """The name of the signal, as "SIGSEGV"; "" for none, and for one that has no name."""
        from signal import Signals  # imported here: its enumerations take a millisecond to make

        return next((each.name for each in Signals if each == self.signal), "")


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


# The forms of an object that a cell displays, by MIME type, from the richest to the plainest: those
# of Jupyter that a page can show without running code.
HTML, SVG, LATEX, MARKDOWN = "text/html", "image/svg+xml", "text/latex", "text/markdown"
PLOTLY, JSON_FORM = "application/vnd.plotly.v1+json", "application/json"
DISPLAY_FORMS = (HTML, SVG, PLOTLY, LATEX, MARKDOWN, JSON_FORM)


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True, repr=False)
class Display(Displayed):
    """An object that a cell displayed, in its rich forms: untrusted text of the session.

    `text`: the object as plain text, as the cell's output has it, too. `forms`: further forms by
    MIME type: "text/html", "image/svg+xml", "text/latex", "text/markdown", "application/json" and
    "application/vnd.plotly.v1+json" (both as JSON text). HTML and SVG may hold scripts and
    addresses: show them in a frame without rights, as `html()` does. A PNG form is among the
    cell's `figures`. `is_value`: the object is the value of the cell's last expression.
    """

    text: str
    forms: Mapping[str, str] = field(hash=False)
    is_value: bool = False

    def html(self) -> str:
        """Return HTML that shows the object: in a frame without scripts and without network."""
        from .display import framed

        return framed(self.text, self.forms)

    def _repr_html_(self) -> str:
        return self.html()


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
        from .display import html_of_rows

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

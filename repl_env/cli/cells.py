"""Cells at a terminal: where one ends, how its outcome is shown, completion of names."""

from __future__ import annotations

import ast
import base64
import builtins
import codeop
import keyword
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rich.console import Console, RenderableType

from repl_env.cli.tables import TerminalText, harmless, json_line
from repl_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from repl_sandbox import Session
    from repl_sandbox.types import AnyOutcome


# Find the end of a cell in typed and in piped input.
#
# The text is parsed here, never run; what is wrong with it the session says.

_compile = codeop.CommandCompiler()
_compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

# Beginnings of lines that continue a compound statement at its own indentation.
_CONTINUES = re.compile(r"(elif|else|except|finally)\b|[)\]}]|#")
# First lines whose statement does not end with a bracket or a quote that closes later.
_GOES_ON = re.compile(r"[@#]|(async|class|def|for|if|match|try|while|with)\b")
# Empty lines after which a writer that pauses is taken to wait for the block that stands open.
_BLANKS_THAT_END = 2

# An escaped character, or the end of the string, by the quotes that opened it.
_IN_QUOTES = {
    quotes: re.compile(rf"\\.|{quotes}", re.DOTALL) for quotes in ("'''", '"""', "'", '"')
}
_MARK = re.compile(r"""#|'{3}|"{3}|['"()\[\]{}]|\\\n?\Z""")


def is_whole(text: str) -> bool:
    """Return whether `text` can run: no construct is open, or no continuation is valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the session warns
        try:
            # Behind a backslash the end of a line would be taken for that of the statement.
            return _compile(text.rstrip("\n"), "<cell>", "exec") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True


def is_block(text: str) -> bool:
    """Return whether `text` ends in a compound statement that may have further lines."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if not statements:
        return False
    last = statements[-1]
    return hasattr(last, "body") and last.end_lineno != last.lineno


def cells(lines: Iterable[str], paused: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield the cells of a text: each top-level statement as soon as its end is known.

    A statement of one line, or in brackets or quotes, ends there. A block ends before the next line
    that is not indented, or with the text; after two empty lines also where `paused` says that
    nothing more comes for now. A line that begins with `:` is a cell of its own.
    """
    pending: list[str] = []
    blanks, beginning = 0, ""
    literal = _Literal()
    for line in lines:
        blank = not line.strip()
        if not blank and _begins(line):
            if pending and _ends(pending, beginning, literal):
                yield "".join(pending)
                pending, literal = [], _Literal()
            beginning = line
        if blank and not pending:
            continue
        was_open = literal.is_open
        pending.append(line)
        literal.feed(line)
        blanks = blanks + 1 if blank else 0
        if len(pending) == 1 and line.startswith(":"):
            yield line
            pending, literal = [], _Literal()
        if literal.is_open or not pending:
            continue
        closes = len(pending) == 1 or (was_open and not _GOES_ON.match(pending[0]))
        if (closes and _closes("".join(pending))) or (
            blanks >= _BLANKS_THAT_END and paused() and is_whole("".join(pending))
        ):
            yield "".join(pending)
            pending, literal = [], _Literal()
    if pending:
        yield "".join(pending)


class _Literal:
    """The constructs left open by the lines so far: brackets, quotes, a final backslash."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0
        self._continued = False

    @property
    def is_open(self) -> bool:
        return bool(self._quote or self._depth or self._continued)

    @property
    def is_quoted(self) -> bool:
        return bool(self._quote)

    def feed(self, line: str) -> None:
        """Go through one more line."""
        self._continued = False
        position: int | None = 0
        while position is not None:
            position = (
                self._past_quote(line, position) if self._quote else self._mark(line, position)
            )

    def _mark(self, line: str, position: int) -> int | None:
        """Find the next mark and go past it; None at the end of the line."""
        found = _MARK.search(line, position)
        if found is None or found[0] == "#":
            return None
        mark = found[0]
        if mark in _IN_QUOTES:
            self._quote = mark
        elif mark[0] == "\\":
            self._continued = True
        else:
            self._depth = max(0, self._depth + (1 if mark in "([{" else -1))
        return found.end()

    def _past_quote(self, line: str, position: int) -> int | None:
        for mark in _IN_QUOTES[self._quote].finditer(line, position):
            if mark[0] == self._quote:
                self._quote = ""
                return mark.end()
        if len(self._quote) == 1 and not line.endswith("\\\n"):
            self._quote = ""  # it is wrong, and ends with its line
        return None


def _begins(line: str) -> bool:
    """Return whether a line begins a new statement, if none is open."""
    line = line.lstrip("\f")  # which has no column
    return not line[:1].isspace() and not _CONTINUES.match(line)


def _ends(pending: list[str], beginning: str, literal: _Literal) -> bool:
    """Return whether the pending lines are a cell, before a line that begins a statement.

    `beginning` is the last of them that begins a statement.

    Open quotes are neither. Open brackets and decorators are seldom wrong: they are parsed each
    time that they have twice as many lines, so that the work grows with the text.
    """
    goes_on = literal.is_open or beginning.startswith("@")
    if literal.is_quoted or (goes_on and len(pending) & (len(pending) - 1)):
        return False
    return is_whole("".join(pending))


def _closes(text: str) -> bool:
    """Return whether a statement ends with its first line, or with the last open bracket."""
    return not text.startswith("#") and is_whole(text) and not _may_go_on(text)


def _may_go_on(text: str) -> bool:
    """Return whether an `else` may follow a whole compound statement, such as `if x: y`."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return bool(statements) and hasattr(statements[-1], "orelse")


# Display of cells for people (`TextScreen`) and for programs (`JSONScreen`).

_STATES = {
    "kept": "variables are kept",
    "rolled_back": "the session is back at the state before the cell",
    "restarted": "the session began anew: its variables are gone",
}
_REASONS = {
    "memory": "out of memory",
    "cpu": "no CPU time left",
    "processes": "too many processes",
    "workspace": "files take more room than there is",
    "output": "too much output",
    "exit": "the cell ended its process",
    "signal": "the cell's process was ended by a signal",
    "protocol": "the cell's process broke the protocol",
}


class Screen(Protocol):
    """Display of cells, replies to commands and errors."""

    def output(self, stream: str, text: str) -> None:
        """Show a piece of a running cell's "stdout" or "stderr"."""

    def outcome(self, cell: int, outcome: AnyOutcome) -> None:
        """Show the outcome of a cell whose output was shown."""

    def reply(self, command: str, reply: RenderableType) -> None:
        """Show the reply to a command."""

    def complain(self, what: str, message: str) -> None:
        """Show the error of a cell or a command."""

    def note(self, message: str) -> None:
        """Show a note to the user."""


class TextScreen:
    """Shows cells as a REPL does: output at once, the value, the traceback, notable facts.

    On a terminal, text of the session is made harmless and tracebacks are coloured; anywhere else
    it is passed as it is. `memory`: bytes that a session may use, to be said when it used more.
    """

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, *, memory: int | None = None
    ) -> None:
        self._memory = memory
        self._streams = {"stdout": out or sys.stdout, "stderr": err or sys.stderr}
        self._texts = {
            name: TerminalText() if stream.isatty() else None
            for name, stream in self._streams.items()
        }
        # Both streams are one screen if both are terminals: then either may leave a line open.
        self._open = dict.fromkeys(self._streams, False)
        self._out = Console(file=self._streams["stdout"], highlight=False, soft_wrap=True)
        self._err = Console(file=self._streams["stderr"], highlight=False, soft_wrap=True)

    def output(self, stream: str, text: str) -> None:
        """Write it and let it be seen at once."""
        maker = self._texts[stream]
        self._write(stream, text if maker is None else maker.feed(text))

    def outcome(self, cell: int, outcome: AnyOutcome) -> None:
        """Close the line, show the value or the traceback, and what is notable."""
        self._close_line()
        if outcome.value is not None:
            self._write("stdout", self._safe("stdout", outcome.value) + "\n")
        if outcome.error is not None:
            self._traceback(outcome.error.traceback)
        for line in notable(outcome, self._memory):
            self._say(line, "yellow")

    def reply(self, command: str, reply: RenderableType) -> None:
        """Show tables and texts in the width of the terminal."""
        self._close_line()
        begin = "\n" if self._open["stdout"] else ""
        self._write("stdout", begin + _rendered(self._out, reply))

    def complain(self, what: str, message: str) -> None:
        """Show the error in red on stderr."""
        self._say(message, "red")

    def note(self, message: str) -> None:
        """Show the note dimmed on stderr."""
        self._say(message, "dim")

    def _say(self, line: str, style: str) -> None:
        self._close_line()
        self._err.print(self._safe("stderr", line), style=style, markup=False)

    def _traceback(self, text: str) -> None:
        *frames, last = self._safe("stderr", text).rstrip("\n").split("\n")
        if frames:
            self._err.print("\n".join(frames), markup=False, style="dim")
        self._err.print(last, markup=False, style="bold red")

    def _safe(self, stream: str, text: str) -> str:
        return text if self._texts[stream] is None else harmless(text)

    def _write(self, stream: str, text: str) -> None:
        if text:
            file = self._streams[stream]
            file.write(text)
            file.flush()
            self._open[stream] = not text.endswith("\n")

    def _close_line(self) -> None:
        """Nothing is written behind what the cell wrote; a pipe gets no line end that it lacks."""
        for stream, maker in self._texts.items():
            if maker is not None:
                file = self._streams[stream]
                file.write(maker.finish() + ("\n" if self._open[stream] else ""))
                file.flush()
                self._open[stream] = False


class JSONScreen:
    """One JSON object per cell or command, one per line, on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def output(self, stream: str, text: str) -> None:
        """Ignore the output: the outcome has it."""

    def outcome(self, cell: int, outcome: AnyOutcome) -> None:
        """Print all fields of the outcome, figures in base64."""
        self._print({"cell": cell, **as_json(outcome)})

    def reply(self, command: str, reply: RenderableType) -> None:
        """Print the text of the reply."""
        text = _rendered(Console(width=200, color_system=None), reply).rstrip("\n")
        self._print({"command": command, "ok": True, "text": text})

    def complain(self, what: str, message: str) -> None:
        """Print `ok` as false, and the reason."""
        self._print({"command": what, "ok": False, "text": message})

    def note(self, message: str) -> None:
        """Ignore the note: a program reads the outcomes."""

    def _print(self, fields: dict[str, Any]) -> None:
        self._out.write(json_line(fields) + "\n")
        self._out.flush()


def _rendered(console: Console, reply: RenderableType) -> str:
    """Return `reply` as text, without the blanks at the ends of lines."""
    with console.capture() as captured:
        console.print(reply, soft_wrap=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().rstrip("\n").split("\n"))


def notable(outcome: AnyOutcome, memory: int | None = None) -> list[str]:
    """Return notable facts besides output, value and traceback; usually none.

    `memory`: bytes that the session may use, if known.
    """
    lines = []
    reasons: Mapping[str, str] = _REASONS
    if memory is not None:
        number = f"{memory / (1 << 20):,.0f} MiB"
        reasons = {**_REASONS, "memory": f"{_REASONS['memory']}: the limit is {number}"}
    if (ended := _ended(outcome, reasons)) is not None:
        lines.append(f"[{ended}; {_STATES[outcome.state]}]")
    elif outcome.state != "kept":
        lines.append(f"[{_STATES[outcome.state]}]")
    named = getattr(outcome, "reason", None)
    lines += [f"[limit reached: {reasons[limit]}]" for limit in outcome.limits if limit != named]
    if outcome.lost:
        lines.append(f"[not brought back: {'; '.join(outcome.lost)}]")
    if outcome.figures:
        count = len(outcome.figures)
        lines.append(f"[{count} figure{'s' * (count > 1)}; :figure FILE.png saves]")
    return lines


def _ended(outcome: AnyOutcome, reasons: Mapping[str, str]) -> str | None:
    from repl_sandbox.types import Killed, TimedOut

    match outcome:
        case TimedOut(clock="execution"):
            return f"timed out after {outcome.usage.execution_seconds:.3g} s"
        case TimedOut():
            return f"timed out after {outcome.usage.waiting_seconds:.3g} s of waiting"
        case Killed(reason=reason, signal_name=name):
            return f"{reasons[reason]} ({name})" if name else reasons[reason]
        case _:
            return None


def as_json(outcome: AnyOutcome) -> dict[str, Any]:
    """Return an outcome as a JSON object."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(outcome).__name__).lower()
    fields = {"outcome": kind, "ok": outcome.ok, **asdict(outcome)}
    fields["figures"] = [base64.b64encode(figure).decode() for figure in outcome.figures]
    return fields


# Completions of a name or an attribute, from the session; no code runs in this process.
#
# Names come from the list of its variables. Attributes come from `dir()` in a branch that is
# dropped afterwards: properties and `__getattr__` run there, and the session stays as it is, with
# its cells and what can be undone.

# Seconds that a person waits for a list without wondering.
_PATIENCE = 0.5
_MOST = 2000
_LONGEST = 100

_PATH = re.compile(r"(?:(?P<owner>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\.)?(?P<prefix>[^\W\d]\w*|)")
_OURS = (*keyword.kwlist, *(name for name in dir(builtins) if not name.startswith("_")))


def completions(session: Session, before: str) -> tuple[str, list[str]]:
    """Return the part of a name that ends the text `before`, and its completions in order.

    Nothing after what is no name, as a call or a number. Names with a leading underscore come only
    when one was typed.
    """
    match = _path(before)
    if match is None:
        return "", []
    owner, prefix = match["owner"], match["prefix"]
    if owner is None and not prefix:
        return "", []
    names = names_of(session) if owner is None else attributes_of(session, owner)
    fitting = {name for name in names if name.startswith(prefix)}
    if not prefix.startswith("_"):
        fitting = {name for name in fitting if not name.startswith("_")}
    return prefix, sorted(fitting)[:_MOST]


def names_of(session: Session) -> list[str]:
    """Return the variables of the session, keywords and builtins."""
    with suppress(SandboxError):
        return [*(one.name for one in session.variables()), *_OURS]
    return list(_OURS)


def attributes_of(session: Session, owner: str) -> list[str]:
    """Return `dir()` of `owner`, a dotted name; empty if it fails or takes too long."""
    if any(keyword.iskeyword(part) for part in owner.split(".")):
        return []
    try:
        with session.branch() as branch:
            outcome = branch.run(f"print(*dir({owner}), sep='\\n')", timeout=_PATIENCE)
    except SandboxError:
        return []
    if not outcome.ok:
        return []
    # A `__dir__` of the session's may say anything.
    names = outcome.stdout.split("\n", _MOST)[:_MOST]
    return [name for name in names if name.isidentifier() and len(name) <= _LONGEST]


def _path(before: str) -> re.Match[str] | None:
    """The dotted name that ends `before`; None for `f().x`, `1.x` and `"a".x`, which are none."""
    start = len(before)
    while start and (before[start - 1].isalnum() or before[start - 1] in "_."):
        start -= 1
    if start and before[start - 1] in ")]}'\"":
        return None
    return _PATH.fullmatch(before, start)

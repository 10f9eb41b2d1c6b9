"""Display of cells for people (`TextScreen`) and for programs (`JSONScreen`)."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rich.console import Console, RenderableType

from ..render.terminal_text import TerminalText, harmless

if TYPE_CHECKING:
    from repl_sandbox.types import AnyOutcome

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
        self._out.write(json.dumps(fields, ensure_ascii=False) + "\n")
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
        case Killed(reason=reason):
            return reasons[reason]
        case _:
            return None


def as_json(outcome: AnyOutcome) -> dict[str, Any]:
    """Return an outcome as a JSON object."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(outcome).__name__).lower()
    fields = {"outcome": kind, "ok": outcome.ok, **asdict(outcome)}
    fields["figures"] = [base64.b64encode(figure).decode() for figure in outcome.figures]
    return fields

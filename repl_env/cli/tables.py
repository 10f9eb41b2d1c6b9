"""Tables and texts that stay readable in narrow terminals, and safe to print."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from repl_env.evaluation.report import Scores, Summary


# Prose with commands in backticks, wrapped so that every command can be copied from a terminal.

_COMMAND = re.compile(r"`[^`]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def copyable(text: str, width: int, indent: int = 0) -> str:
    """Wrap `text` at words into `width` columns; a line break never stands inside backticks.

    A command that is longer than a line has a line of its own, which the terminal wraps: copying it
    gives no line break.
    """
    unbroken = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    margin = " " * indent
    wrapped = textwrap.fill(
        unbroken,
        max(width, indent + 20),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(_NO_BREAK, " ")


# Tables that stay readable in narrow terminals: a table that does not fit becomes records.
#
# A column that may wrap does so as long as its longest word fits; otherwise each row is printed
# as its first cell and, below it, its other cells with their headings. No cell is ever cut, and
# no word is broken that fits a line.

_LEAST = 24  # columns of the screen that a column keeps which wraps
_GAP = "   "  # between the cells of a record


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its heading, its side, and whether its cells may take several lines."""

    name: str
    justify: Literal["left", "right"] = "left"
    wraps: bool = False


class FittedTable:
    """A table for the console that prints it. Cells are plain text, or `Text` with styles.

    Args:
        headings: of the columns; a str is a heading of a left column that does not wrap.
        title, note: lines above and below the table.
        show_header: whether the table has a line of headings; records always name their cells,
            unless there are only two columns.
    """

    def __init__(
        self,
        *headings: Heading | str,
        title: str = "",
        note: str = "",
        show_header: bool = True,
    ) -> None:
        self._headings = [Heading(each) if isinstance(each, str) else each for each in headings]
        self._title, self._note, self._show_header = title, note, show_header
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row, one cell for each heading."""
        self._rows.append([each if isinstance(each, Text) else Text(each) for each in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="bold")
        if self._fits(console, options):
            yield self._table()
        else:
            yield from self._records(options.max_width)
        if self._note:
            yield Text(self._note, style="dim")

    def _fits(self, console: Console, options: ConsoleOptions) -> bool:
        """Return whether the table fits: unwrapped cells are whole, others have enough columns."""
        natural = Measurement.get(console, options.update(width=10_000), self._table(wraps=False))
        saved = sum(
            max(0, self._width(index, "\n") - max(_LEAST, self._width(index)))
            for index, heading in enumerate(self._headings)
            if heading.wraps
        )
        return natural.maximum - saved <= options.max_width

    def _width(self, index: int, between: str | None = None) -> int:
        """Return the width of the longest part, by default word, of a column's cells."""
        parts = (part for row in self._rows for part in row[index].plain.split(between))
        return max(map(cell_len, parts), default=0)

    def _table(self, *, wraps: bool = True) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_header=self._show_header, pad_edge=False)
        for heading in self._headings:
            table.add_column(
                heading.name,
                justify=heading.justify,
                no_wrap=not (wraps and heading.wraps),
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*row)
        return table

    def _records(self, width: int) -> Iterator[Text | Padding]:
        yield Text("")
        for first, *others in self._rows:
            yield Text.assemble(first, style="bold")
            parts = [
                self._named(heading.name, cell)
                for heading, cell in zip(self._headings[1:], others, strict=True)
                if cell.plain.strip()
            ]
            for line in _packed(parts, width - 2):
                yield Padding(line, (0, 0, 0, 2))
        yield Text("")

    def _named(self, heading: str, cell: Text) -> Text:
        if not heading or len(self._headings) == 2:
            return cell
        return Text.assemble((f"{heading} ", "dim"), cell)


def _packed(parts: Sequence[Text], width: int) -> Iterator[Text]:
    """As many parts on each line as fit; none is broken unless it is longer than a line."""
    line: Text | None = None
    for part in parts:
        if line is not None and line.cell_len + len(_GAP) + part.cell_len <= width:
            line = Text.assemble(line, _GAP, part)
            continue
        if line is not None:
            yield line
        line = part
    if line is not None:
        yield line


# Untrusted text on a terminal: control sequences are shown, not obeyed.
#
# Output of a session can hold any byte, among them sequences that set the clipboard, the title or
# the keys of a terminal, or have it type something. Colours pass, as do tabs, line ends, carriage
# returns and backspaces (bars of progress are made of them); other control characters become
# visible, and so do those of the reading direction (Unicode's Bidi_Control), with which code
# reads as other code.

RESET = "\x1b[0m"

# A colour or a weight: Select Graphic Rendition of ECMA-48, 8.3.117.
_COLOUR = r"\x1b\[[0-9;:]{0,32}m"
# Letters that turn the reading direction make a line read as what it is not; two others end lines.
_TURNS = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_STEERS = re.compile(rf"({_COLOUR})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f{_TURNS}]")
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_CONTROLS = re.compile(rf"[\x00-\x1f\x7f-\x9f{_TURNS}]+")
# Those that a JSON text holds as they are, unless it is ASCII.
_IN_JSON = re.compile(rf"[\x7f-\x9f{_TURNS}]")


class TerminalText:
    """One stream's text made harmless, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._begun = ""
        self._coloured = False

    def feed(self, text: str) -> str:
        """Return `text` as it may be written, without a possible beginning of a colour sequence."""
        text = self._begun + text
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        return _STEERS.sub(self._shown, text[: len(text) - len(self._begun)])

    def finish(self) -> str:
        """Return the rest at the end of a stream or a cell, and the end of its colours."""
        rest = _STEERS.sub(self._shown, self._begun)
        reset = RESET if self._coloured else ""
        self._begun, self._coloured = "", False
        return rest + reset

    def _shown(self, match: re.Match[str]) -> str:
        if match[1]:
            self._coloured = True
            return match[1]
        return visible(match[0])


def visible(control: str) -> str:
    """Return a control character as `^[`, `\\x9b` or `\\u202e`."""
    code = ord(control)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def harmless(text: str) -> str:
    """Return a whole text as it may be written to a terminal."""
    made = TerminalText()
    return made.feed(text) + made.finish()


def json_line(value: Any) -> str:
    """Return `value` as JSON of one line, with letters as they are and controls as escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return _IN_JSON.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def one_line(text: str, length: int = 200) -> str:
    """Return the beginning of `text` as one line without control characters."""
    line = " ".join(_CONTROLS.sub(" ", text[: 4 * length]).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


# The summary of an evaluation as tables.

_MOST_FAILURES = 10  # listed one by one; the results file has all


def show(console: Console, summary: Summary) -> None:
    """Print scores, what went wrong, and what it cost."""
    console.print(score_table(summary))
    if summary.failures:
        _show_failures(console, summary)
    totals = FittedTable("", Heading("", wraps=True), title="All tasks that ran", show_header=False)
    for name, text in _totals(summary):
        if text:
            totals.add_row(name, text)
    console.print(totals)


def score_table(summary: Summary) -> FittedTable:
    """Return the mean scores of all tasks and of each group."""
    columns = (Heading(name, "right") for name in ("n", "score", "95 % interval"))
    scores = FittedTable("tasks", *columns, title=_title(summary))
    for row in summary.scores:
        scores.add_row(one_line(row.name), str(row.n), _mean(row), _interval(row))
    return scores


def _title(summary: Summary) -> str:
    return f"{summary.scored} of {summary.tasks} tasks scored"


def _mean(row: Scores) -> str:
    return "-" if row.mean is None else f"{row.mean:.4f}"


def _interval(row: Scores) -> str:
    if row.low is None or row.high is None:
        return "-"
    return f"{row.low:.4f} to {row.high:.4f}"


def _show_failures(console: Console, summary: Summary) -> None:
    table = FittedTable(
        "error_kind",
        Heading("tasks", "right"),
        Heading("for example", wraps=True),
        title="Not scored: failures, not zeros",
    )
    counts = Counter(failure.error_kind for failure in summary.failures)
    for kind, count in counts.most_common():
        first = next(each for each in summary.failures if each.error_kind == kind)
        table.add_row(one_line(kind), str(count), one_line(f"{first.id}: {first.error or ''}"))
    console.print(table)
    names = [failure.id for failure in summary.failures]
    more = f" and {len(names) - _MOST_FAILURES} more" if len(names) > _MOST_FAILURES else ""
    listed = ", ".join(names[:_MOST_FAILURES])
    console.print(f"Without a score: {listed}{more}", markup=False, highlight=False)


def _totals(summary: Summary) -> Iterator[tuple[str, str]]:
    """Return the line about all tasks together, or an empty string."""
    failed = f", {summary.failed_calls:,} failed" if summary.failed_calls else ""
    estimated = f", {summary.estimated_tokens:,} of them estimated"
    tokens = f"{summary.input_tokens:,} in, {summary.output_tokens:,} out"
    yield "ended by", _counts(summary.stop_reasons)
    yield "errors in scored tasks", _counts(summary.error_kinds)
    if summary.calls:
        yield "calls to models", f"{summary.calls:,}{failed}"
        yield "tokens", tokens + (estimated if summary.estimated_tokens else "")
        yield "runs below the root", f"{summary.children:,}"
        yield "cost", _cost(summary)
    if summary.epoch_deviation is not None:
        yield "standard deviation of epochs", f"{summary.epoch_deviation:.4f}"
    yield "seconds for a task", _seconds(summary)
    yield "masked by failures of infrastructure", _masked(summary)
    yield "not run", f"{summary.not_run:,}" if summary.not_run else ""


def _masked(summary: Summary) -> str:
    return f"{summary.masked_share:.1%}" if summary.masked_share else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{one_line(name)} {count}" for name, count in counts.items())


def _cost(summary: Summary) -> str:
    if not summary.unpriced_calls:
        return f"${summary.usd:.4f}"
    unknown = f"{summary.unpriced_calls:,} calls of unknown price"
    return f"${summary.usd:.4f} and {unknown}" if summary.usd else unknown


def _seconds(summary: Summary) -> str:
    if summary.seconds_p50 is None or summary.seconds_p95 is None:
        return ""
    return f"p50 {summary.seconds_p50:.2f}, p95 {summary.seconds_p95:.2f}"

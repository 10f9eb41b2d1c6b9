"""Tables that stay readable in narrow terminals: a table that does not fit becomes records.

A column that may wrap does so as long as its longest word fits; otherwise each row is printed as
its first cell and, below it, its other cells with their headings. No cell is ever cut, and no word
is broken that fits a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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

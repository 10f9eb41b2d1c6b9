"""Tables of the commands are readable at any width: no cell is cut and no word is broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from repl_env.cli.tables import FittedTable, Heading

PATH = "/usr/lib/python3/site-packages/native.so,"


def printed(width: int, *rows: tuple[str | Text, ...], headings=("name", "found", "used")) -> str:
    table = FittedTable(*headings, title="This system", note="A note.")
    for row in rows:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().split("\n")
    assert all(len(line.rstrip()) <= width for line in lines)
    return "\n".join(line.rstrip() for line in lines)


WRAPS = ("name", Heading("found", wraps=True), Heading("used", "right"))
ROW = ("library", f"{PATH} built by gcc", "jailed, confined")


def test_a_table_that_fits_is_a_table() -> None:
    told = printed(100, ROW, headings=WRAPS)

    assert " name " in told and " found " in told
    assert "library   /usr/lib" in told


@pytest.mark.parametrize("headings", [WRAPS, ("name", "found", "used")])
@pytest.mark.parametrize("width", [60, 80])
def test_no_word_is_broken_that_fits_a_line(width: int, headings) -> None:
    told = printed(width, ROW, ("other", Text("works"), ""), headings=headings)

    for cell in ("library", PATH, "gcc", "jailed, confined", "other", "works", "A note."):
        assert cell in told


def test_a_column_may_wrap_as_long_as_its_words_fit() -> None:
    long = ("library", "several words that are much longer than one line of the table has", "x")

    assert "library   several words" in printed(50, long, headings=WRAPS)
    assert printed(50, ROW, headings=WRAPS).split("\n")[2] == "library"


def test_records_name_their_cells_and_leave_out_empty_ones() -> None:
    assert printed(30, ("a name", "1", ""), ("b", "x" * 20, "z" * 9)).split("\n")[:6] == [
        "This system",
        "",
        "a name",
        "  found 1",
        "b",
        f"  found {'x' * 20}",
    ]


def test_markup_in_a_cell_is_text() -> None:
    assert "[bold]" in printed(80, ("[bold]", "a", "b"))
    assert "[bold]" in printed(10, ("[bold]", "a" * 9, "b"))

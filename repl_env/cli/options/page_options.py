"""Options of commands that write a page: `--html` and `--max-size`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .help_groups import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable

PagePath: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="OUT",
        help="Write a page for a browser: one HTML file, which works from disk.",
        rich_help_panel=OUTPUT,
    ),
]
PageSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        help="Maximum size of the page of --html, such as 50MB; longer outputs are cut to fit.",
        rich_help_panel=OUTPUT,
    ),
]


def check_page(out: Path | None, size: str | None) -> int | None:
    """Return the size in bytes; BadParameter if no page can be written, before any work is done."""
    from repl_sandbox.session_limits import parse_size

    if out is None:
        if size is not None:
            raise typer.BadParameter("--max-size goes with --html")
        return None
    from repl_env.display.viewer.html_export import check_target

    try:
        check_target(out)
        return None if size is None else parse_size(size, "--max-size")
    except OSError as error:
        raise typer.BadParameter(_reason(error), param_hint="--html") from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def write_page_file(out: Path, size: int | None, data: Callable[[], dict[str, Any]]) -> None:
    """Write the page with the result of `data`; BadParameter if it cannot be."""
    from repl_env.display.viewer.html_export import PageTooLarge, write_page

    try:
        write_page(data(), out, size)
    except PageTooLarge as error:
        hint = "--max-size SIZE writes it, and cuts the longest outputs where it has to"
        raise typer.BadParameter(f"{error}; {hint}", param_hint="--html") from error
    except OSError as error:
        raise typer.BadParameter(_reason(error), param_hint="--html") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-size") from error
    typer.echo(f"Wrote {out}", err=True)


def _reason(error: OSError) -> str:
    return str(error) if error.filename is None else f"{error.filename}: {error.strerror}"

"""Options of commands that write a page: `--html` and `--max-size`."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The page that a command writes; without `html`, none."""

    html: PagePath = None
    max_size: PageSize = None

    def check(self) -> int | None:
        """Return the maximum size in bytes; None without `--max-size`.

        Raises:
            typer.BadParameter: no page can be written. Call this before the work of the command.
        """
        from repl_sandbox.session_limits import parse_size

        if self.html is None:
            if self.max_size is not None:
                raise typer.BadParameter("--max-size goes with --html")
            return None
        from repl_env.display.viewer.html_export import check_target

        try:
            check_target(self.html)
            return None if self.max_size is None else parse_size(self.max_size, "--max-size")
        except OSError as error:
            raise typer.BadParameter(_reason(error), param_hint="--html") from error
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def write_page_file(out: Path, size: int | None, data: Callable[[], dict[str, Any]]) -> None:
    """Write the page with the result of `data`.

    Raises:
        typer.BadParameter: the page cannot be written, or would exceed `size` bytes.
    """
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

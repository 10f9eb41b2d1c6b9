"""`repl-env view PATH...`: a local page about runs, episodes and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .options.option_groups import with_option_groups
from .options.page_options import PageOptions, write_page_file

if TYPE_CHECKING:
    from repl_env.display.viewer.named_files import NamedFiles


_SERVER = "Server"  # a heading of the help screen

Paths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Trajectory files, results of `repl-env eval`, or folders of them; or recorded "
        "episodes, such as a download of the playground.",
        show_default=False,
    ),
]
Port: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.", rich_help_panel=_SERVER
    ),
]
OpenBrowser: TypeAlias = Annotated[
    bool,
    typer.Option("--open/--no-open", help="Open the page in a browser.", rich_help_panel=_SERVER),
]


@with_option_groups
def view(paths: Paths, page: PageOptions, port: Port = 0, open_browser: OpenBrowser = True) -> None:
    """Show recorded runs, episodes and evaluations in a browser, until Ctrl-C; or write a page."""
    size = page.check()
    from repl_env.display.viewer.named_files import NamedFiles
    from repl_env.display.viewer.recorded_episode import viewable

    with TemporaryDirectory(prefix="repl-env-view-") as made:
        with _errors():
            files = NamedFiles([viewable(path, Path(made)) for path in paths])
        if page.html is not None:
            _write(files, page.html, size)
        else:
            _serve(files, port, open_browser=open_browser)


@contextmanager
def _errors() -> Iterator[None]:
    """Report files that cannot be read, or shown, as errors of usage."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None
        message = f"{error.filename}: {error.strerror}" if named else str(error)
        raise typer.BadParameter(message) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _write(files: NamedFiles, out: Path, size: int | None) -> None:
    from repl_env.display.viewer.html_export import files_data

    with _errors():
        data = files_data(files)
    write_page_file(out, size, lambda: data)


def _serve(files: NamedFiles, port: int, *, open_browser: bool) -> None:
    from repl_env.display.viewer.view_data import ViewData
    from repl_env.display.viewer.view_server import ViewServer

    count = len(files.files())
    with _errors():
        server = ViewServer(ViewData(files), port)
    with server:
        typer.echo(f"Showing {count} {'file' if count == 1 else 'files'} at {server.url}")
        typer.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()

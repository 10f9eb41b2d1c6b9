"""`repl-env view PATH...`: a local page about runs, episodes and evaluations."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from repl_env.display.viewer.view_server import ViewServer


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Trajectory files, results of `repl-env eval`, or folders of them; or recorded "
            "episodes, such as a download of the playground.",
            show_default=False,
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")
    ] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Show recorded runs, episodes and evaluations in a browser, until Ctrl-C."""
    from repl_env.display.viewer.named_files import NamedFiles
    from repl_env.display.viewer.recorded_episode import viewable
    from repl_env.display.viewer.view_data import ViewData
    from repl_env.display.viewer.view_server import ViewServer

    with TemporaryDirectory(prefix="repl-env-view-") as made:
        try:
            files = NamedFiles([viewable(path, Path(made)) for path in paths])
            server = ViewServer(ViewData(files), port)
        except OSError as error:
            raise typer.BadParameter(_reason(error)) from error
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        _serve(server, len(files.files()), open_browser=open_browser)


def _serve(server: ViewServer, files: int, *, open_browser: bool) -> None:
    with server:
        typer.echo(f"Showing {files} {'file' if files == 1 else 'files'} at {server.url}")
        typer.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _reason(error: OSError) -> str:
    return str(error) if error.filename is None else f"{error.filename}: {error.strerror}"

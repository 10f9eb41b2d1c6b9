"""`repl-env view PATH...`: a local page about trajectories and results of evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Trajectory files, results of `repl-env eval`, or folders of them.",
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
    """Show recorded runs and evaluations in a browser, until Ctrl-C."""
    from repl_env.display.viewer.named_files import NamedFiles
    from repl_env.display.viewer.view_data import ViewData, kind_of
    from repl_env.display.viewer.view_server import ViewServer

    try:
        files = NamedFiles(paths)
        for file in files.files():
            if not file.parts and kind_of(file) == "other":
                raise typer.BadParameter(f"{file.path}: neither a trajectory nor results of eval")
        server = ViewServer(ViewData(files), port)
    except OSError as error:
        raise typer.BadParameter(_reason(error)) from error
    with server:
        typer.echo(f"Showing {len(files.files())} files at {server.url}")
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

"""`repl-env serve`: a server of environments on a port."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer

from repl_env.cli.exit_status import ExitStatus
from repl_env.cli.options.session_options import opening
from repl_env.cli.standard_streams import give_up_stdout

from .serve_options import settings

if TYPE_CHECKING:
    from ..serving import Server
    from ..settings import Settings

# Descriptors of a session: its pipes and sockets.
_FILES = 8


def _check_libraries() -> None:
    """Say what to install, and leave, where the extra is not."""
    try:
        from .. import app, serving  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'repl-env[server]' has what it needs"
        typer.echo(f"repl-env serve: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _check_room(files: int, settings: Settings) -> None:
    needed = _FILES * settings.max_sessions + settings.connections
    if files < needed:
        message = (
            f"--max-sessions and --connections may need {needed} open files; {files} are allowed"
        )
        typer.echo(f"repl-env: {message} (ulimit -n)", err=True)


def _say_where(url: str) -> None:
    """Where it listens, for whoever reads that; the log has it too."""
    try:
        typer.echo(f"repl-env serves on {url}")
    except OSError:
        give_up_stdout()


def _run(server: Server) -> None:
    try:
        server.run()
    except SystemExit as error:
        # Uvicorn's status for this is that of a tier which cannot be had.
        typer.echo(
            "repl-env: the server did not start, or did not stop; the log says why", err=True
        )
        raise typer.Exit(ExitStatus.FAILED) from error


def _command(settings: Callable[..., Settings]) -> Callable[..., None]:
    @wraps(settings)
    def serve(**options: Any) -> None:
        _check_libraries()
        from ..app import create_app
        from ..serving import freeze_gc, hide_memory, raise_open_files, server
        from ..telemetry.event_log import written_to

        try:
            app = create_app(settings(**options))
        except OSError as error:
            message = f"{options['api_keys']}: {error.strerror}"
            raise typer.BadParameter(message, param_hint="--api-keys") from error
        except ValueError as error:  # the keys, or the model
            raise typer.BadParameter(str(error)) from error
        manager = app.state.manager
        _check_room(raise_open_files(), manager.settings)
        with opening():
            manager.prepare()
        hide_memory()
        freeze_gc()
        with written_to(sys.stderr, contents=manager.settings.log_contents):
            _run(server(app, _say_where))

    serve.__doc__ = """Serve environments over WebSockets and HTTP.

    Each option may be a variable of the environment too: REPL_ENV_MAX_SESSIONS for --max-sessions.
    Exit 2: a setting is wrong, or keys are missing. Exit 3: there is no such tier here.
    """
    return serve


serve = _command(settings)

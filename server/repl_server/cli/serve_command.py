"""`repl-env serve`: serve environments on a port."""

from __future__ import annotations

import shlex
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

# File descriptors of a session: pipes and sockets.
_FILES = 8


def _check_libraries() -> None:
    """Exit with the command to install the extra, if it is missing."""
    try:
        from .. import app, serving  # noqa: F401
    except ImportError as error:
        remedy = "install it with: pip install 'repl-env[server]'"
        typer.echo(f"repl-env serve: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _check_room(files: int, settings: Settings) -> None:
    needed = _FILES * settings.max_sessions + settings.connections
    if files < needed:
        typer.echo(
            f"repl-env: --max-sessions and --connections may need {needed} open files,"
            f" but the limit is {files} (ulimit -n)",
            err=True,
        )


def _accepting_confined(settings: Settings) -> str:
    """This command with the options that accept tier confined."""
    isolation = [] if settings.isolation == "auto" else ["--isolation", "confined"]
    return shlex.join(["repl-env", *sys.argv[1:], *isolation, "--require", "confined"])


def _say_where(url: str) -> None:
    """Print the URL; the log has it too, if nobody reads standard output."""
    try:
        typer.echo(f"repl-env serves on {url}")
    except OSError:
        give_up_stdout()


def _run(server: Server) -> None:
    try:
        server.run()
    except SystemExit as error:
        # Uvicorn's exit status would mean that an isolation tier is unavailable.
        address = f"{server.config.host}:{server.config.port}"
        failed = (
            "failed to stop; the log above says why"
            if server.started
            else f"failed to start on {address}, for the reason in the log above;"
            " --host and --port choose another address"
        )
        typer.echo(f"repl-env: the server {failed}", err=True)
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
        with opening(_accepting_confined(manager.settings)):
            manager.prepare()
        hide_memory()
        freeze_gc()
        with written_to(sys.stderr, contents=manager.settings.log_contents):
            _run(server(app, _say_where))

    serve.__doc__ = """Serve environments over WebSockets and HTTP.

    Each option has an environment variable, such as REPL_ENV_MAX_SESSIONS for --max-sessions.
    Exit status 2: invalid option, or missing keys. 3: the isolation tier is unavailable.
    """
    return serve


serve = _command(settings)

"""`repl-env serve` and `repl-env keys`: the commands of a server."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repl_env.cli.main import HelpGroup, give_up_stdout
from repl_env.cli.options import ExitStatus, opening, with_option_groups
from repl_env.client.address import ServerAddress

from .auth import (
    VARIABLE,
    APIKeys,
    change_file,
    expiry_of,
    new_key,
    replace_line,
    time_text,
)
from .cli_options import ServeOptions, ServerAccessOptions, option_error, settings_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .manager import SessionManager
    from .serving import Server
    from .settings import Settings


# `repl-env keys`: create, list, expire and revoke API keys.


class KeyCommands(HelpGroup):
    """The commands of `repl-env keys`; `keys NAME` is `keys create NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; those that begin with no command are for `create`."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["create", *args]
        return super().parse_args(ctx, args)


keys = typer.Typer(
    cls=KeyCommands,
    help="Create, list, expire and revoke API keys; `keys NAME` creates one.",
    no_args_is_help=True,
)

_FILE_VARIABLE = "REPL_ENV_KEYS_FILE"
_HASH_DIGITS = 12  # shown of a hash: enough to tell keys apart
_WHEN_HELP = "30d (s, m, h, d, w), 2030-01-31, 2030-01-31T12:00Z (UTC), now or never"

KeyName = Annotated[str, typer.Argument(help="Name of the key's user.")]
ExistingFile = Annotated[
    Path, typer.Option("--file", metavar="FILE", envvar=_FILE_VARIABLE, help="Key file.")
]


@contextmanager
def _errors_of_file(file: Path | None) -> Iterator[None]:
    """Report errors about the key file as errors of its option."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@keys.command()
def create(
    name: Annotated[
        str, typer.Argument(help="Name of the key's user, which quotas and logs refer to.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=_FILE_VARIABLE,
            help="Key file to add the key to; created if missing.",
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="WHEN", help=f"Time from which the key is refused: {_WHEN_HELP}.")
    ] = "never",
) -> None:
    """Create an API key and print it once; only its hash is stored."""
    with _errors_of_file(file):
        key, line = new_key(name, _expiry(expires, "--expires"))
        if file is not None:
            append(file, line)
    typer.echo(key)
    where = (
        f"added to {file}" if file is not None else f"add this line to a key file, or to {VARIABLE}"
    )
    typer.echo(f"{line}\n^ {where}; the key above is not shown again.", err=True)


@keys.command("list")
def list_keys(
    file: ExistingFile,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the keys of a file: name, beginning of the hash, expiry. No key is in the file."""
    with _errors_of_file(file):
        stored = APIKeys.read(file).stored
    rows = [
        {
            "name": name,
            "sha256": key.digest.hex()[:_HASH_DIGITS],
            "expires": None if key.expires is None else time_text(key.expires),
            "expired": key.expired,
        }
        for name, key in stored.items()
    ]
    typer.echo(dumps(rows) if json else _table(rows))


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no keys"
    width = max(len("NAME"), *(len(row["name"]) for row in rows))
    texts = [
        (
            row["name"],
            f"{row['sha256']}…",
            ("expired " * row["expired"]) + (row["expires"] or "never"),
        )
        for row in rows
    ]
    lines = [("NAME", "SHA-256", "EXPIRES"), *texts]
    return "\n".join(f"{name:{width}}  {digest:13}  {when}" for name, digest, when in lines)


@keys.command()
def revoke(name: KeyName, file: ExistingFile) -> None:
    """Remove a key from a file: servers refuse the key, and its sessions end within seconds."""
    with _errors_of_file(file):
        change_file(file, lambda text: replace_line(text, name, lambda key: None))
    typer.echo(f"{name} is revoked: {file} has no key of this name any more")


@keys.command()
def expire(
    name: KeyName,
    file: ExistingFile,
    when: Annotated[
        str, typer.Argument(metavar="WHEN", help=f"Time from which it is refused: {_WHEN_HELP}.")
    ] = "now",
) -> None:
    """Set the time from which a key is refused; "never" removes it."""
    expires = _expiry(when, "WHEN")
    with _errors_of_file(file):
        change_file(
            file,
            lambda text: replace_line(
                text, name, lambda key: key._replace(expires=expires).line(name)
            ),
        )
    typer.echo(f"{name} expires {'never' if expires is None else f'at {time_text(expires)}'}")


def _expiry(text: str, hint: str) -> datetime | None:
    try:
        return expiry_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def append(file: Path, line: str) -> None:
    """Append `line` to the key file, which is created if missing.

    Raises:
        ValueError: the file has an invalid line, or a key with this name.
        OSError: the file cannot be read or written.
    """

    def added(text: str) -> str:
        return text + line + "\n" if text.endswith("\n") or not text else f"{text}\n{line}\n"

    change_file(file, added, create=True)


# `repl-env serve`: serve environments on a port.

# File descriptors of a session: pipes and sockets.
_FILES = 8


def _check_libraries() -> None:
    """Exit with the command to install the extra, if it is missing."""
    try:
        from . import app, serving  # noqa: F401
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


def _prepare(manager: SessionManager, options: ServeOptions) -> None:
    from repl_sandbox.errors import SandboxError

    try:
        manager.prepare()
    except SandboxError as error:
        if str(error).startswith("python: "):  # it cannot be started
            raise option_error(error, options.values) from error
        raise


def _print_start(url: str, manager: SessionManager, *, requires_keys: bool) -> None:
    """Print the URL and the pages; the log has them too, if nobody reads standard output."""
    settings = manager.settings
    tier = "of a custom environment" if manager.tier is None else f"tier {manager.tier}"
    lines = [
        f"repl-env serves on {url}",
        f"  playground  {f'{url}/' if manager.has_playground else 'off; --web turns it on'}",
        f"  routes      {url}/docs",
        f"  sessions    {tier}, {settings.max_sessions} at most",
        f"  access      {'every request needs a key' if requires_keys else 'no key is needed'}",
    ]
    try:
        typer.echo("\n".join(lines))
    except OSError:
        give_up_stdout()


class _ListenErrors(logging.Filter):
    """Keeps the error of an address that cannot be listened on, which uvicorn only logs."""

    error: OSError | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, OSError):
            return True
        self.error = record.msg
        return False


def _run(server: Server) -> None:
    errors, uvicorn = _ListenErrors(), logging.getLogger("uvicorn.error")
    uvicorn.addFilter(errors)
    try:
        server.run()
    except SystemExit as error:
        # Uvicorn's exit status would mean that an isolation tier is unavailable.
        typer.echo(f"repl-env: the server {_failure(server, errors.error)}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    finally:
        uvicorn.removeFilter(errors)


def _failure(server: Server, error: OSError | None) -> str:
    if server.started:
        return "failed to stop; the log above says why"
    if error is None:
        return "failed to start; the log above says why"
    # asyncio's text repeats the address. A name that does not resolve has a number of its own.
    number = error.errno or 0
    reason = os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
    address = f"{server.config.host}:{server.config.port}"
    return f"cannot listen on {address}: {reason}; --host and --port choose another address"


@with_option_groups
def serve(options: ServeOptions) -> None:
    """Serve environments over WebSockets and HTTP.

    Each option has an environment variable, such as REPL_ENV_MAX_SESSIONS for --max-sessions.
    Exit status 2: invalid option, or missing keys. 3: the isolation tier is unavailable.
    """
    _serve(options)


def _serve(options: ServeOptions) -> None:
    _check_libraries()
    _check_membership(options.access)
    from .serving import freeze_gc, hide_memory, raise_open_files
    from .telemetry import written_to

    app = _app(options)
    manager: SessionManager = app.state.manager
    _check_room(raise_open_files(), manager.settings)
    with opening(_accepting_confined(manager.settings)):
        _prepare(manager, options)
    hide_memory()
    freeze_gc()
    settings = manager.settings
    made = _announced(app, options.access)
    with written_to(sys.stderr, contents=settings.log_contents, level=settings.log_level):
        _run(made)


@with_option_groups
def node(options: ServeOptions) -> None:
    """Serve as a node of a cluster: `repl-env serve` with --join.

    ```
    repl-env node --join /shared/nodes --host 0.0.0.0 --port 0 --api-keys keys.txt
    ```
    `repl-env cluster status /shared/nodes` lists the nodes; clients use them by `REPLCluster`.
    """
    if options.access.join is None:
        raise typer.BadParameter(
            "name the directory in which the nodes of the cluster find each other's clients",
            param_hint="--join",
        )
    _serve(options)


def _announced(app: FastAPI, options: ServerAccessOptions) -> Server:
    """Return the server, which prints its URL and joins its cluster once it listens."""
    from repl_env.client.nodes import NodeFile

    from .serving import server

    keyed = app.state.guard_context.authenticator.requires_keys

    def listening(url: str) -> None:
        _print_start(url, app.state.manager, requires_keys=keyed)
        if options.join is not None:
            file = NodeFile(options.join, options.advertise or _reachable(url))
            made.until_drain.enter_context(file)

    made = server(app, listening)
    return made


def _check_membership(options: ServerAccessOptions) -> None:
    from repl_env.client.nodes import check_directory

    folder, url = options.join, options.advertise
    if folder is not None:
        try:
            check_directory(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            message = f"{str(folder)!r}: {error.strerror}"
            raise typer.BadParameter(message, param_hint="--join") from None
    try:
        ServerAddress.parse("localhost:1" if url is None else url)
    except ValueError as error:
        raise typer.BadParameter(f"{url!r}: {error}", param_hint="--advertise") from None


def _reachable(url: str) -> str:
    """Return a URL for other machines: an address that stands for all has this host's name."""
    address = ServerAddress.parse(url)
    if not ip_address(address.host).is_unspecified:
        return url
    return f"http://{socket.gethostname()}:{address.port}"


def _app(options: ServeOptions) -> FastAPI:
    from .app import create_app

    try:
        return create_app(settings_of(options))
    except OSError as error:
        message = f"{str(options.access.api_keys)!r}: {error.strerror}"
        raise typer.BadParameter(message, param_hint="--api-keys") from error
    except ValueError as error:
        raise option_error(error, options.values) from error

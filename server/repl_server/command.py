"""`repl-env serve`: a server of environments on a port.

Each option can be given by a variable of the environment as well, which is what containers and
`repl_server.asgi` use: `REPL_ENV_MAX_SESSIONS` for `--max-sessions`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.budget_options import budget_from
from repl_env.cli.model_options import ModelOptions, llm_from
from repl_env.cli.session_options import (
    Isolation,
    LanguageName,
    Require,
    modules_of,
    opening,
    policy_of,
)
from repl_env.cli.status import Status
from repl_env.cli.streams import give_up_stdout

from .keys import VARIABLE, lines_of

if TYPE_CHECKING:
    from .serving import Server
    from .settings import Settings

PREFIX = "REPL_ENV_"

# Descriptors of a session: its pipes and sockets.
_FILES = 8


class Recovery(StrEnum):
    """What becomes of a session whose process dies."""

    SNAPSHOT = "snapshot"
    RESTART = "restart"


def option(name: str, help: str, **more: Any) -> Any:
    """An option that a variable of the environment can give too."""
    # Of two names, as --yes/--no, the first, which then may be 0.
    variable = PREFIX + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, **{"envvar": variable, **more})


def seconds(name: str, help: str) -> Any:
    """An option in seconds."""
    return option(name, help, min=0, metavar="SECONDS")


Texts: TypeAlias = list[str] | None


def settings(
    host: Annotated[str, option("--host", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port", "0 takes a free one.", min=0, max=65535)] = 8000,
    api_keys: Annotated[
        Path | None,
        option(
            "--api-keys",
            f"Keys, by `repl-env keys`; {VARIABLE} may have lines of such a file.",
            metavar="FILE",
            envvar=f"{VARIABLE}_FILE",
        ),
    ] = None,
    metrics_key: Annotated[
        str | None,
        option("--metrics-key", "The key that /metrics tells of all keys.", metavar="NAME"),
    ] = None,
    no_auth: Annotated[
        bool, option("--no-auth", "Ask nobody for a key who can reach the port.")
    ] = False,
    origin: Annotated[Texts, option("--origin", "Of web pages that may ask; repeat.")] = None,
    trusted_proxy: Annotated[
        Texts, option("--trusted-proxy", "Whose X-Forwarded-For is believed; repeat.")
    ] = None,
    isolation: Annotated[
        Isolation, option("--isolation", "The tier that holds the code.")
    ] = Isolation.AUTO,
    require: Annotated[Require, option("--require", "The weakest to accept.")] = Require.JAILED,
    recovery: Annotated[
        Recovery, option("--recovery", "Where a session goes on whose process dies.")
    ] = Recovery.SNAPSHOT,
    preload: Annotated[
        Texts, option("--preload", "Modules to import beforehand.", metavar="MODULE")
    ] = None,
    memory: Annotated[str, option("--memory", "Of a session, as 512MiB or 2GB.")] = "1GiB",
    output: Annotated[str, option("--output", "What is kept of a step's output.")] = "1MiB",
    timeout: Annotated[float, seconds("--timeout", "How long a cell may execute.")] = 30.0,
    max_timeout: Annotated[
        float, seconds("--max-timeout", "The longest that a step may ask for.")
    ] = 3600.0,
    language: Annotated[
        LanguageName, option("--language", "How much of Python cells may use; no wall.")
    ] = LanguageName.FULL,
    pool: Annotated[int, option("--pool", "Sessions made ahead of time.", min=0)] = 0,
    yielding: Annotated[
        bool,
        option("--yielding/--no-yielding", "Sessions that burn CPU time give way to all others."),
    ] = True,
    max_sessions: Annotated[int, option("--max-sessions", "Open at once.", min=1)] = 64,
    max_waiting: Annotated[int, option("--max-waiting", "Who may wait for one.", min=0)] = 64,
    wait: Annotated[float, seconds("--wait", "How long they may.")] = 10.0,
    idle: Annotated[float, seconds("--idle", "Sessions that nobody uses end then.")] = 900.0,
    grace: Annotated[float, seconds("--grace", "How long sessions outlive a socket.")] = 60.0,
    drain: Annotated[float, seconds("--drain", "For what runs when the server stops.")] = 30.0,
    llm_url: Annotated[
        Texts,
        option(
            "--llm-url",
            "An endpoint that a reset may name for sub-calls, or URL/* for all below it; repeat.",
            metavar="URL",
        ),
    ] = None,
    model: Annotated[
        str | None, option("--model", "Answers the sub-calls of resets that name nobody.")
    ] = None,
    base_url: Annotated[str | None, option("--base-url", "Where that model is.")] = None,
    api_key_env: Annotated[
        str | None, option("--api-key-env", "The variable that holds its key.", metavar="NAME")
    ] = None,
    budget_calls: Annotated[int, option("--budget-calls", "Sub-calls of a session.")] = 200,
    budget_tokens: Annotated[
        str | None, option("--budget-tokens", "Of its sub-calls.", metavar="IN[:OUT]")
    ] = None,
    quota: Annotated[
        Texts,
        option(
            "--quota",
            "What each owner may use, as sessions=8 or steps_per_second=50; repeat.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    max_message: Annotated[
        str | None,
        option(
            "--max-message",
            "Of one WebSocket message or HTTP body; 128MiB, 32MiB with --no-auth off loopback.",
        ),
    ] = None,
    max_context: Annotated[
        str | None,
        option("--max-context", "Of one uploaded context; 1GiB, or --max-uploads if that is less."),
    ] = None,
    max_uploads: Annotated[str, option("--max-uploads", "Of all that are kept.")] = "4GiB",
    connections: Annotated[int, option("--connections", "Open at once.", min=1)] = 2048,
    log_contents: Annotated[
        bool, option("--log-contents", "Write code and output into the log.")
    ] = False,
) -> Any:
    """The `Settings` that the options ask for.

    Raises:
        typer.BadParameter: naming the one that is wrong.
    """
    from repl_sandbox import Limits
    from repl_sandbox.types import parse_size

    from .addresses import is_loopback
    from .settings import Settings

    own = None
    if model is not None:
        own = llm_from(ModelOptions(model, base_url, api_key_env), os.environ)
    elif base_url or api_key_env:
        raise typer.BadParameter("--base-url and --api-key-env are of a model: name it by --model")
    budget = budget_from(budget_calls, budget_tokens, None, None)
    try:
        uploads = parse_size(max_uploads, "--max-uploads")
        return Settings(
            host=host,
            port=port,
            api_keys=api_keys,
            hashed_keys=tuple(lines_of(os.environ.get(VARIABLE, ""))),
            metrics_key=metrics_key,
            no_auth=no_auth,
            origins=tuple(origin or ()),
            trusted_proxies=tuple(trusted_proxy or ()),
            isolation=isolation.value,
            require=require.value,
            recovery=recovery.value,
            preload=modules_of(preload),
            limits=Limits(memory=memory, output=output, timeout=timeout),
            max_timeout_s=max_timeout,
            policy=policy_of(language),
            pool=pool,
            yielding=yielding,
            max_sessions=max_sessions,
            max_waiting=max_waiting,
            wait_s=wait,
            idle_s=idle,
            grace_s=grace,
            drain_s=drain,
            llm_urls=tuple(llm_url or ()),
            llm=own,
            budget=budget,
            quota=_quota(quota or (), strangers=no_auth and not is_loopback(host)),
            message_bytes=None if max_message is None else parse_size(max_message, "--max-message"),
            context_bytes=_context_bytes(max_context, uploads),
            uploads_bytes=uploads,
            connections=connections,
            log_contents=log_contents,
        )
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _quota(given: Sequence[str], *, strangers: bool) -> Any:
    """The quota of these lines, None for none; raises ValueError.

    What is not named stays as it is without any: for strangers, limited.
    """
    from .settings import ADDRESS_QUOTA, Quota

    if not given:
        return None
    if wrong := [each for each in given if not each.partition("=")[2]]:
        raise ValueError(f"--quota: {wrong[0]!r} is not NAME=VALUE, as sessions=8")
    named = dict(each.partition("=")[::2] for each in given)
    kinds = {field.name: int if "int" in str(field.type) else float for field in fields(Quota)}
    if unknown := named.keys() - kinds.keys():
        raise ValueError(f"--quota: {min(unknown)!r} is none of {', '.join(kinds)}")
    counted: dict[str, Any] = {}
    for name, text in named.items():
        try:
            counted[name] = kinds[name](text)
        except ValueError:
            whole = "a whole number" if kinds[name] is int else "a number"
            raise ValueError(f"--quota {name} must be {whole}, not {text!r}") from None
    try:
        return replace(ADDRESS_QUOTA if strangers else Quota(), **counted)
    except ValueError as error:
        raise ValueError(f"--quota: {error}") from None


def _context_bytes(given: str | None, uploads: int) -> int:
    """The size of one upload, where all that are kept have `uploads` bytes; raises ValueError."""
    from repl_sandbox.types import parse_size

    from .settings import CONTEXT

    if given is None:
        return min(CONTEXT, uploads)
    size = parse_size(given, "--max-context")
    if size > uploads:
        raise ValueError(f"--max-context {given} is more than --max-uploads has for all of them")
    return size


def of_variables(host: str) -> Settings:
    """The settings that the variables of the environment ask for; `host` if they name none."""
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    given: Settings = typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return given


def _check_libraries() -> None:
    """Say what to install, and leave, where the extra is not."""
    try:
        from . import app, serving  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'repl-env[server]' has what it needs"
        typer.echo(f"repl-env serve: {error}. {remedy}", err=True)
        raise typer.Exit(Status.FAILED) from error


def _check_room(files: int, settings: Settings) -> None:
    needed = _FILES * settings.max_sessions + settings.connections
    if files < needed:
        told = f"--max-sessions and --connections may need {needed} open files; {files} are allowed"
        typer.echo(f"repl-env: {told} (ulimit -n)", err=True)


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
        raise typer.Exit(Status.FAILED) from error


def _command(settings: Callable[..., Settings]) -> Callable[..., None]:
    @wraps(settings)
    def serve(**options: Any) -> None:
        _check_libraries()
        from .app import create_app
        from .journal import written_to
        from .serving import hide_memory, raise_open_files, server, spare_collector

        try:
            app = create_app(settings(**options))
        except OSError as error:
            told = f"{options['api_keys']}: {error.strerror}"
            raise typer.BadParameter(told, param_hint="--api-keys") from error
        except ValueError as error:  # the keys, or the model
            raise typer.BadParameter(str(error)) from error
        host = app.state.host
        _check_room(raise_open_files(), host.settings)
        with opening():
            host.prepare()
        hide_memory()
        spare_collector()
        with written_to(sys.stderr, contents=host.settings.log_contents):
            _run(server(app, _say_where))

    serve.__doc__ = """Serve environments over WebSockets and HTTP.

    Each option may be a variable of the environment too: REPL_ENV_MAX_SESSIONS for --max-sessions.
    Exit 2: a setting is wrong, or keys are missing. Exit 3: there is no such tier here.
    """
    return serve


serve = _command(settings)

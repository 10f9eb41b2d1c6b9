"""`repl-env mcp`: a jailed Python session for a model, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_status import ExitStatus
from .options.context_files import STDIN, ContextFiles, contexts_from, loaded
from .options.help_groups import LIMITS
from .options.limit_options import (
    CellTimeout,
    CPUSeconds,
    FileSize,
    InterruptGrace,
    Memory,
    OpenFiles,
    Output,
    Processes,
    Workspace,
)
from .options.session_options import (
    ImageOption,
    Isolation,
    IsolationOption,
    Language,
    LanguageName,
    Preload,
    Require,
    RequireOption,
    RuntimeOption,
    modules_of,
    opening,
    policy_of,
)

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment
    from repl_sandbox import Limits

# Seconds that a call may ask for, where nobody says.
_LONGEST_S = 600.0
_HINT = (
    "Messages of the Model Context Protocol are read here, one a line. Programs start this command "
    "by themselves: docs/mcp.md has the lines for their configuration. Ctrl-D ends it."
)


def mcp(
    context: ContextFiles = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = None,
    image: ImageOption = None,
    runtime: RuntimeOption = None,
    preload: Preload = None,
    timeout: CellTimeout = 30.0,
    max_timeout: Annotated[
        float | None,
        typer.Option(
            "--max-timeout",
            metavar="SECONDS",
            help="Longest time-out a call may ask for; 600, or --timeout if longer.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    memory: Memory = "1GiB",
    processes: Processes = 64,
    open_files: OpenFiles = 256,
    file_size: FileSize = "256MiB",
    workspace: Workspace = "256MiB",
    output: Output = "64MiB",
    cpu_seconds: CPUSeconds = None,
    interrupt_grace: InterruptGrace = 0.5,
    language: Language = LanguageName.FULL,
) -> None:
    """Offer a Python session to a model: an MCP server on standard input and output.

    A program that works with models starts it and has one session in it; the session ends with
    its input.
    """
    if any(one.rpartition("=")[2] == STDIN for one in context or ()):
        raise typer.BadParameter("standard input has the messages", param_hint="--context")
    longest_cell_s = _longest(timeout, max_timeout)
    values = loaded(contexts_from(context or ()))
    from repl_sandbox import Limits

    with opening():
        limits = Limits(
            memory=memory,
            timeout=timeout,
            processes=processes,
            open_files=open_files,
            file_size=file_size,
            workspace=workspace,
            output=output,
            cpu_seconds=cpu_seconds,
            grace=interrupt_grace,
        )
        environment = _environment(
            isolation, require, image, runtime, modules_of(preload), limits, language
        )
    _check_library()
    if sys.stdin.isatty():
        typer.echo(_HINT, err=True)
    interrupted = asyncio.run(_serve(environment, values, longest_cell_s, memory))
    raise typer.Exit(ExitStatus.INTERRUPTED if interrupted else ExitStatus.OK)


def _longest(timeout: float, given: float | None) -> float:
    """Seconds that a call may ask for."""
    if given is None:
        return max(timeout, _LONGEST_S)
    if not 0 < given < math.inf:
        told = "must be a finite number of seconds above 0"
    elif given < timeout:
        told = f"{given:g} is less than --timeout {timeout:g}, which a call has: lower that too"
    else:
        return given
    raise typer.BadParameter(told, param_hint="--max-timeout")


def _check_library() -> None:
    """Say what to install, and leave, where there is no SDK, or one that is too old."""
    try:
        from repl_env.integrations.mcp import mcp_server, stdio_transport, tool_calls  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'repl-env[mcp]' has what it needs"
        typer.echo(f"repl-env mcp: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _environment(
    isolation: Isolation,
    require: Require | None,
    image: str | None,
    runtime: str | None,
    preload: tuple[str, ...],
    limits: Limits,
    language: LanguageName,
) -> REPLEnvironment:
    from repl_env.env.environment import REPLEnvironment

    return REPLEnvironment(
        isolation=isolation.value,
        require=None if require is None else require.value,
        image=image,
        runtime=runtime,
        preload=preload,
        limits=limits,
        policy=policy_of(language),
        answers="strict",  # nobody asked for it who only prints FINAL(...)
    )


async def _serve(
    environment: REPLEnvironment,
    contexts: Mapping[str, str | bytes],
    longest_cell_s: float,
    memory: str,
) -> bool:
    """Serve one client until it leaves; whether Ctrl-C was what ended it."""
    import anyio

    from repl_env.integrations.mcp.mcp_server import server
    from repl_env.integrations.mcp.stdio_transport import serve, standard_streams
    from repl_env.integrations.mcp.tool_calls import EnvironmentToolSession, ToolCalls

    stop, signals = anyio.Event(), list[signal.Signals]()

    def end(number: signal.Signals) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    calls = ToolCalls(
        EnvironmentToolSession(environment), contexts=contexts, longest_cell_s=longest_cell_s
    )
    try:
        with opening():
            await calls.begin()
        with standard_streams() as (source, sink):
            await serve(server(_told(environment, memory), calls), source, sink, stop)
    finally:
        await environment.close_async()
    return signal.SIGINT in signals


def _told(environment: REPLEnvironment, memory: str) -> str:
    """Return the instructions that the client gives its model."""
    from repl_env.integrations.mcp.mcp_server import instructions

    tier = environment.session.isolation.tier
    parts = [part for part in environment.contexts if part.length]
    listed = ", ".join(f"{part.name} ({part.length} {part.unit})" for part in parts)
    given = f" It begins with the variables {listed}." if parts else ""
    more = f" It may use {memory} of memory (tier {tier}).{given}"
    return instructions(isolated=tier != Isolation.PROCESS, more=more)

"""`repl-env mcp`: a jailed Python session for a model, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from repl_env.cli.model_options import STDIN, ContextFiles, contexts_from, loaded
from repl_env.cli.options import (
    LIMITS,
    ExitStatus,
    Isolation,
    Language,
    LanguageName,
    LimitOptions,
    SessionOptions,
    opening,
    policy_of,
    with_option_groups,
)

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment

# Seconds that a call may ask for, by default.
_LONGEST_S = 600.0
_HINT = (
    "Messages of the Model Context Protocol are read here, one a line. Programs start this command "
    "by themselves: docs/mcp.md has the lines for their configuration. Ctrl-D ends it."
)


MaxTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--max-timeout",
        metavar="SECONDS",
        help="Longest time-out a call may ask for; 600, or --timeout if longer.",
        rich_help_panel=LIMITS,
    ),
]


@with_option_groups
def mcp(
    *,
    context: ContextFiles = None,
    session: SessionOptions,
    limits: LimitOptions,
    max_timeout: MaxTimeout = None,
    language: Language = LanguageName.FULL,
) -> None:
    """Offer a Python session to a model: an MCP server on standard input and output.

    A program that works with models starts it and has one session in it; the session ends with
    its input.
    """
    if any(one.rpartition("=")[2] == STDIN for one in context or ()):
        raise typer.BadParameter("standard input has the messages", param_hint="--context")
    longest_cell_s = _longest(limits.timeout, max_timeout)
    values = loaded(contexts_from(context or ()))
    with opening():
        environment = _environment(session, limits, language)
    _check_library()
    if sys.stdin.isatty():
        typer.echo(_HINT, err=True)
    interrupted = asyncio.run(_serve(environment, values, longest_cell_s, limits.memory))
    raise typer.Exit(ExitStatus.INTERRUPTED if interrupted else ExitStatus.OK)


def _longest(timeout: float, given: float | None) -> float:
    """Return the longest time-out of a call in seconds."""
    if given is None:
        return max(timeout, _LONGEST_S)
    if not 0 < given < math.inf:
        message = "must be a finite number of seconds above 0"
    elif given < timeout:
        message = f"{given:g} is less than --timeout {timeout:g}, which a call has: lower that too"
    else:
        return given
    raise typer.BadParameter(message, param_hint="--max-timeout")


def _check_library() -> None:
    """Exit with the command to install the SDK, if it is missing or too old."""
    try:
        from repl_env.integrations import mcp, mcp_stdio  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'repl-env[mcp]' has what it needs"
        typer.echo(f"repl-env mcp: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _environment(
    session: SessionOptions, limits: LimitOptions, language: LanguageName
) -> REPLEnvironment:
    from repl_env.env.environment import REPLEnvironment

    return REPLEnvironment(
        **session.arguments(),
        limits=limits.limits(),
        policy=policy_of(language),
        answers="strict",  # a user who prints FINAL(...) did not ask for an answer
    )


async def _serve(
    environment: REPLEnvironment,
    contexts: Mapping[str, str | bytes],
    longest_cell_s: float,
    memory: str,
) -> bool:
    """Serve one client until it leaves, and return whether Ctrl-C ended it."""
    import anyio

    from repl_env.integrations.mcp import EnvironmentToolSession, ToolCalls, server
    from repl_env.integrations.mcp_stdio import serve, standard_streams

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
            await serve(server(_instructions(environment, memory), calls), source, sink, stop)
    finally:
        await environment.close_async()
    return signal.SIGINT in signals


def _instructions(environment: REPLEnvironment, memory: str) -> str:
    """Return the instructions that the client gives its model."""
    from repl_env.integrations.mcp import instructions

    tier = environment.session.isolation.tier
    parts = [part for part in environment.contexts if part.length]
    listed = ", ".join(f"{part.name} ({part.length} {part.unit})" for part in parts)
    given = f" It begins with the variables {listed}." if parts else ""
    more = f" It may use {memory} of memory (tier {tier}).{given}"
    return instructions(isolated=tier != Isolation.PROCESS, more=more)

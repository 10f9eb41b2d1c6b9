"""`repl-env cluster status NODES`: the servers of a cluster, and how much room each has."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from repl_env.cli.options import ExitStatus, JSONOutput
from repl_env.cli.tables import FittedTable, Heading, json_line, one_line

if TYPE_CHECKING:
    from repl_env.cluster import NodeStatus


def status(
    nodes: Annotated[
        list[str],
        typer.Argument(
            help="URLs of servers; or a directory that nodes join; or dns://name:port.",
            metavar="NODES...",
        ),
    ],
    api_key_env: Annotated[
        str,
        typer.Option(
            "--api-key-env", metavar="NAME", help="Environment variable with the key for all nodes."
        ),
    ] = "REPL_ENV_API_KEY",
    json_output: JSONOutput = False,
) -> None:
    """Show the nodes of a cluster: `repl-env cluster status /shared/nodes`.

    Exit status 1: no node takes sessions.
    """
    from repl_env.cluster import REPLCluster

    try:
        source = nodes[0] if len(nodes) == 1 else nodes
        statuses = REPLCluster(source, api_key=os.environ.get(api_key_env)).status()
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="NODES") from None
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        raise typer.BadParameter(message, param_hint="NODES") from None
    if json_output:
        typer.echo(json_line([asdict(each) for each in statuses]))
    else:
        _show(Console(), statuses)
    if all(each.problem for each in statuses):
        raise typer.Exit(ExitStatus.FAILED)


def _show(console: Console, statuses: list[NodeStatus]) -> None:
    if not statuses:
        console.print("No node has joined: `repl-env node --join DIR` starts one.")
        return
    table = FittedTable(
        "node",
        "version",
        *(Heading(name, "right") for name in ("open", "free", "waiting")),
        Heading("state", wraps=True),
    )
    for each in statuses:
        state = each.problem or ("takes sessions" if each.free else "full")
        counts = (each.sessions, each.free, each.waiting) if each.version else ("", "", "")
        table.add_row(one_line(each.url), each.version, *map(str, counts), one_line(state))
    console.print(table)
    usable = [each for each in statuses if not each.problem]
    console.print(
        f"{len(usable)} of {len(statuses)} nodes take sessions: "
        f"{sum(each.sessions for each in usable)} are open, "
        f"{sum(each.free for each in usable)} could be."
    )


cluster = typer.Typer(help="Servers as one: list the nodes of a cluster.", no_args_is_help=True)
cluster.command("status")(status)


@cluster.callback()
def _commands() -> None:
    """Servers as one: list the nodes of a cluster."""

"""`repl-env doctor`: what this system offers to hold sessions, what is missing, and the remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .facilities import Facility, Finding, look
from .status import Status

Looked = Sequence[tuple[Facility, Finding]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A session that was started to see: its layers, or the step that failed."""

    tier: str
    works: bool
    layers: tuple[dict[str, Any], ...] = ()
    step: str = ""
    message: str = ""
    remedy: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what this system offers to hold sessions; exit 0 if tier `jailed` works, else 3."""
    looked = look()
    trial = try_jailed()
    if as_json:
        typer.echo(json.dumps(report(looked, trial), indent=2))
    else:
        show(Console(), looked, trial)
    raise typer.Exit(Status.OK if trial.works else Status.TIER_UNAVAILABLE)


def try_jailed() -> Trial:
    """Start a sandbox of tier `jailed`, open a session in it and ask what holds it."""
    try:
        from repl_sandbox import Sandbox
        from repl_sandbox.errors import IsolationError
    except (ImportError, OSError) as error:
        # The engine's host side loads only where its system calls exist.
        return Trial("jailed", False, step="import", message=str(error))
    try:
        with Sandbox(isolation="jailed", require="jailed") as sandbox, sandbox.session() as session:
            answered = session.run("1 + 1").value == "2"
            layers = tuple(asdict(layer) for layer in session.isolation.layers)
            tier = session.isolation.tier
    except IsolationError as error:
        return Trial("jailed", False, step=error.step, message=str(error), remedy=error.remedy)
    except Exception as error:  # noqa: BLE001 (a diagnosis reports what went wrong, whatever it is)
        return Trial("jailed", False, step="session", message=f"{type(error).__name__}: {error}")
    if not answered:
        return Trial("jailed", False, layers, "session", "the session does not answer `1 + 1`")
    return Trial(tier, tier == "jailed", layers)


def report(looked: Looked, trial: Trial) -> dict[str, Any]:
    """The same facts as the tables, for programs."""
    return {
        "tiers": {"jailed": trial.works},
        "facilities": [
            {
                "name": facility.name,
                "ok": finding.ok,
                "required": facility.required,
                "detail": finding.detail,
                "remedy": "" if finding.ok else finding.remedy or facility.remedy,
            }
            for facility, finding in looked
        ],
        "session": asdict(trial),
    }


def show(console: Console, looked: Looked, trial: Trial) -> None:
    """Print the facilities, the layers of the session that was tried, and the verdict."""
    table = Table("facility", "", "found", "remedy", title="This system")
    for facility, finding in looked:
        table.add_row(
            facility.name,
            _mark(finding.ok, facility.required),
            escape(finding.detail),
            "" if finding.ok else escape(finding.remedy or facility.remedy),
        )
    console.print(table)
    if trial.layers:
        layers = Table("layer", "", "seen from inside", title="A session started here")
        for layer in trial.layers:
            layers.add_row(layer["name"], _mark(layer["active"], False), escape(layer["detail"]))
        console.print(layers)
    console.print(_verdict(trial), highlight=False, soft_wrap=True)


def _mark(ok: bool, required: bool) -> str:
    if ok:
        return "[green]yes[/]"
    return "[red]no[/]" if required else "[yellow]no[/]"


def _verdict(trial: Trial) -> str:
    if trial.works:
        return "[green]Tier jailed works here.[/]"
    return f"[red]Tier jailed does not work here:[/] {escape(trial.message)}"

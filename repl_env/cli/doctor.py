"""`repl-env doctor`: what this system offers to hold sessions, what is missing, and the remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from .exit_status import ExitStatus

if TYPE_CHECKING:
    from repl_sandbox import Facility


class Tier(StrEnum):
    """The tiers, from the strongest to the weakest."""

    JAILED = "jailed"
    CONFINED = "confined"
    PROCESS = "process"


# Tried only with an image, which nobody but the caller can choose; between the first two.
CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Trial:
    """A session that was started to see: its layers, or the step that failed."""

    tier: str
    works: bool
    layers: tuple[dict[str, Any], ...] = ()
    step: str = ""
    message: str = ""
    remedy: str = ""

    def has(self, layer: str) -> bool:
        """Whether the session was seen to have `layer`."""
        return any(each["name"] == layer and each["active"] for each in self.layers)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    require: Annotated[
        Tier, typer.Option(help="Weakest tier to accept; the default is that of a sandbox.")
    ] = Tier.CONFINED,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Try tier container too, with a container of IMAGE."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Container runtime of the daemon for that container."),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Only remove containers whose host process has ended, and name them."
        ),
    ] = False,
) -> None:
    """Show what this system offers to hold sessions; exit 3 if it has no tier of --require."""
    if clean:
        remove_containers()
        return
    from repl_sandbox import probe

    facilities = probe()
    tried: dict[str, dict[str, str | None]] = {tier.value: {} for tier in Tier}
    if image is not None:
        tried = {Tier.JAILED.value: {}, CONTAINER: {"image": image, "runtime": runtime}, **tried}
    trials = [try_tier(tier, **arguments) for tier, arguments in tried.items()]
    enough = trials[: list(tried).index(require.value) + 1]
    found = any(trial.works for trial in enough)
    if as_json:
        typer.echo(json.dumps(report(facilities, trials), indent=2))
    else:
        show(Console(), facilities, trials)
        if not found:
            typer.echo(f"There is no tier here that is {require.value} or stronger.")
    raise typer.Exit(ExitStatus.OK if found else ExitStatus.TIER_UNAVAILABLE)


def remove_containers() -> None:
    """Remove containers that outlived their hosts; exit 5 where that cannot be done."""
    from .options.session_options import opening

    with opening():
        from repl_sandbox.backends import clean

        removed = clean()
    for name in removed:
        typer.echo(f"removed container {name}")
    if not removed:
        typer.echo("no container outlived its host")


def try_tier(tier: str, **arguments: str | None) -> Trial:
    """Start a sandbox of `tier`, open a session in it and ask what holds it."""
    try:
        from repl_sandbox import Sandbox
        from repl_sandbox.errors import IsolationError
    except (ImportError, OSError) as error:
        # The engine's host side loads only where its system calls exist.
        return Trial(tier, False, step="import", message=str(error))
    try:
        settings: Any = {"isolation": tier, **arguments}
        with Sandbox(**settings) as sandbox, sandbox.session() as session:
            answered = session.run("1 + 1").value == "2"
            isolation = session.isolation
    except IsolationError as error:
        return Trial(tier, False, step=error.step, message=str(error), remedy=error.remedy)
    except Exception as error:  # noqa: BLE001 (a diagnosis reports what went wrong, whatever it is)
        return Trial(tier, False, step="session", message=f"{type(error).__name__}: {error}")
    layers = tuple(asdict(layer) for layer in isolation.layers)
    if not answered:
        return Trial(tier, False, layers, "session", "the session does not answer `1 + 1`")
    return Trial(tier, isolation.tier == tier, layers)


def report(facilities: Sequence[Facility], trials: Sequence[Trial]) -> dict[str, Any]:
    """The same facts as the tables, for programs. `session` is the strongest that works."""
    strongest = next((trial for trial in trials if trial.works), trials[0])
    return {
        "tiers": {trial.tier: trial.works for trial in trials},
        "facilities": [
            {
                "name": facility.name,
                "ok": facility.ok,
                "tiers": list(facility.tiers),
                "detail": facility.detail,
                "remedy": facility.remedy,
            }
            for facility in facilities
        ],
        "session": asdict(strongest),
        "sessions": {trial.tier: asdict(trial) for trial in trials},
    }


def show(console: Console, facilities: Sequence[Facility], trials: Sequence[Trial]) -> None:
    """Print the facilities, the layers of the sessions that were tried, and the verdicts."""
    # A path or a remedy that is cut is of no use.
    names = ("facility", "", "found", "needed by", "remedy")
    table = Table(*(Column(name, overflow="fold") for name in names), title="This system")
    for facility in facilities:
        table.add_row(
            facility.name,
            _mark(facility.ok, bool(facility.tiers)),
            escape(facility.detail),
            ", ".join(facility.tiers),
            escape(facility.remedy),
        )
    console.print(table)
    seen = dict.fromkeys(layer["name"] for trial in trials for layer in trial.layers)
    if seen:
        layers = Table("layer", *(trial.tier for trial in trials), title="Sessions started here")
        for name in seen:
            layers.add_row(name, *(_seen(trial, name) for trial in trials))
        console.print(layers)
    for trial in trials:
        console.print(_verdict(trial), highlight=False, soft_wrap=True)


def _seen(trial: Trial, layer: str) -> str:
    return _mark(trial.has(layer), False) if trial.layers else "[red]none started[/]"


def _mark(ok: bool, required: bool) -> str:
    if ok:
        return "[green]yes[/]"
    return "[red]no[/]" if required else "[yellow]no[/]"


def _verdict(trial: Trial) -> str:
    if trial.works:
        return f"[green]Tier {trial.tier} works here.[/]"
    return f"[red]Tier {trial.tier} does not work here:[/] {escape(trial.message)}"

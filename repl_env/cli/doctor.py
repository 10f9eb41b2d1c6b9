"""`repl-env doctor`: the isolation that this system offers, missing facilities, and remedies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from repl_env.cli.options import AsJSON, ExitStatus, Trial, try_tier
from repl_env.cli.tables import FittedTable, copyable

if TYPE_CHECKING:
    from repl_sandbox import Facility


class Tier(StrEnum):
    """The tiers, from the strongest to the weakest."""

    JAILED = "jailed"
    CONFINED = "confined"
    PROCESS = "process"


# Tried only with an image, which nobody but the caller can choose; between the first two.
CONTAINER = "container"


def doctor(
    as_json: AsJSON = False,
    require: Annotated[
        Tier, typer.Option(metavar="TIER", help="Weakest isolation tier to accept.")
    ] = Tier.CONFINED,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Image with which tier container is tried too."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Container runtime that the daemon uses for --image."),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Only remove containers whose host process has ended, and name them."
        ),
    ] = False,
) -> None:
    """Show the isolation that works on this system; exit 3 if it is weaker than --require."""
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
        show(Console(highlight=False), facilities, trials, require.value)
    raise typer.Exit(ExitStatus.OK if found else ExitStatus.TIER_UNAVAILABLE)


def remove_containers() -> None:
    """Remove containers that outlived their hosts; exit 5 where that cannot be done."""
    from repl_env.cli.options import opening

    with opening():
        from repl_sandbox.options import clean

        removed = clean()
    for name in removed:
        typer.echo(f"removed container {name}")
    if not removed:
        typer.echo("no container outlived its host")


def report(facilities: Sequence[Facility], trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the facts of the tables as JSON; `session` is the strongest tier that works."""
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


def show(
    console: Console, facilities: Sequence[Facility], trials: Sequence[Trial], require: str
) -> None:
    """Print the verdict, what to do, and then the facts: facilities and layers of sessions."""
    _print_verdict(console, trials, require)
    remedies: dict[str, list[str]] = {}
    for name, remedy in _remedies(facilities, trials):
        remedies.setdefault(remedy, []).append(name)
    remedies.pop("", None)
    if remedies:
        console.print("\nRemedies", style="bold")
    for remedy, names in remedies.items():
        _print(console, f"{', '.join(names)}:", indent=2)
        _print(console, remedy, indent=4)
    console.print("\nThis system", style="bold")
    width = max(len(facility.name) for facility in facilities)
    for facility in facilities:
        _print_facility(console, facility, width)
    _print_layers(console, trials)


def _print_facility(console: Console, facility: Facility, width: int) -> None:
    mark = _mark(facility.ok, bool(facility.tiers))
    head = Text.assemble("  ", mark, " " * (5 - len(mark)), f"{facility.name:<{width}}  ")
    needed = "" if facility.ok or not facility.tiers else f", needed by {', '.join(facility.tiers)}"
    found = copyable(f"{facility.detail}{needed}", console.width, len(head))
    console.print(head.append(found[len(head) :]), soft_wrap=True)


def _print_verdict(console: Console, trials: Sequence[Trial], require: str) -> None:
    best = next((trial.tier for trial in trials if trial.works), None)
    tiers = [trial.tier for trial in trials]
    if best is None:
        verdict = "No session can start here: no tier of isolation works."
    elif tiers.index(best) > tiers.index(require):
        verdict = f"Sessions of tier {best} can start here, which is weaker than {require}."
    else:
        verdict = f"Sessions can start here: tier {best} works."
    is_enough = best is not None and tiers.index(best) <= tiers.index(require)
    console.print(verdict, style="bold green" if is_enough else "bold red")
    for trial in trials:
        failed = f"step {trial.step!r} failed" if trial.step else "a session has not all its layers"
        works = "works" if trial.tier != Tier.PROCESS else "works, and isolates nothing"
        _print(console, f"{trial.tier}: {works if trial.works else failed}", indent=2)
        if not trial.works:
            reason = trial.message.removesuffix(trial.remedy).removesuffix(". ")
            _print(console, reason.removeprefix(f"{trial.tier}: "), indent=4)


def _remedies(facilities: Sequence[Facility], trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """Yield the remedies of tiers, then those of missing facilities."""
    for trial in trials:
        yield f"tier {trial.tier}", trial.remedy
    for facility in facilities:
        yield facility.name, "" if facility.ok else facility.remedy


def _print_layers(console: Console, trials: Sequence[Trial]) -> None:
    started = [trial for trial in trials if trial.layers]
    if not started:
        return
    table = FittedTable("layer", *(trial.tier for trial in started))
    for name in dict.fromkeys(layer["name"] for trial in started for layer in trial.layers):
        table.add_row(name, *(_mark(trial.has(name), False) for trial in started))
    console.print("\nLayers of the sessions that were started", style="bold")
    console.print(table)


def _print(console: Console, text: str, *, indent: int) -> None:
    console.print(Text(copyable(text, console.width, indent)), soft_wrap=True)


def _mark(ok: bool, required: bool) -> Text:
    if ok:
        return Text("yes", style="green")
    return Text("no", style="red" if required else "yellow")

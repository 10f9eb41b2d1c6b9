"""`repl-env replay TRAJECTORY`: a recorded tree of runs shown, or run again without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .exit_status import ExitStatus
from .options.help_groups import OUTPUT
from .options.option_groups import with_option_groups
from .options.output_options import JSONOutput
from .options.page_options import PageOptions, write_page_file

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.trajectory import Run, Trajectory
    from repl_env.rlm.trajectory_rerun import RunDifference

_RERUN = "Another run of the code"  # a heading of the help screen


RunPath: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Show only this run and the runs below it, such as 0.3.",
        rich_help_panel=OUTPUT,
    ),
]
Show: TypeAlias = Annotated[
    bool,
    typer.Option("--show", help="Show messages, code and outputs in full.", rich_help_panel=OUTPUT),
]
Execute: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--execute",
        help="Run the code again in new sessions with the recorded model replies; exit 1 if an "
        "output or answer differs.",
        rich_help_panel=_RERUN,
    ),
]
Contexts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FILE",
        help="With --execute: a context that is not in the file.",
        rich_help_panel=_RERUN,
    ),
]


@with_option_groups
def replay(
    trajectory: Annotated[Path, typer.Argument(help="Trajectory file of a run.")],
    page: PageOptions,
    run: RunPath = None,
    show: Show = False,
    execute: Execute = False,
    context: Contexts = None,
    as_json: JSONOutput = False,
) -> None:
    """Show a recorded run: turns, code, outputs, sub-calls, the runs below it, and what it cost."""
    size = page.check()
    loaded = _loaded(trajectory)
    if page.html is not None:
        if execute or run is not None or as_json:
            raise typer.BadParameter("--html goes without --execute, --run and --json")
        _write_page(trajectory, page.html, size)
    elif execute:
        if run is not None:
            raise typer.BadParameter("--run goes without --execute")
        again, found = _executed(loaded, context or [])
        _report(again, found, as_json)
        raise typer.Exit(ExitStatus.FAILED if found else ExitStatus.OK)
    elif context:
        raise typer.BadParameter("--context goes with --execute")
    else:
        _show(loaded, run, show, as_json)


def _loaded(path: Path) -> Trajectory:
    from repl_env.rlm.trajectory.trajectory import Trajectory

    try:
        loaded = Trajectory.load(path)
        loaded.root  # noqa: B018 (a file without a run is refused here)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"{error}{_hint(path)}") from error
    return loaded


def _hint(path: Path) -> str:
    """Return the commands for a file that is a recorded episode."""
    from repl_env.storage.recordings import Recording

    try:
        Recording.from_json(path.read_text(encoding="utf-8"))
    except ValueError:
        return ""
    return (
        f". It is a recorded episode: `repl-env view {path}` shows it, and repl_env.replay runs "
        "its cells again"
    )


def _write_page(trajectory: Path, out: Path, size: int | None) -> None:
    from repl_env.display.viewer.html_export import trajectory_data

    # The path may be a link, which the person named; a server of pages would not follow it.
    write_page_file(out, size, lambda: trajectory_data(trajectory.resolve()))


def _show(trajectory: Trajectory, path: str | None, full: bool, as_json: bool) -> None:
    from .render.recorded_tree import print_tree
    from .render.tree_json import as_dict

    try:
        runs = trajectory.roots if path is None else (trajectory.run(path),)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--run") from error
    if as_json:
        tree = {"complete": trajectory.complete, "runs": [as_dict(run) for run in runs]}
        typer.echo(json.dumps(tree, indent=2))
        return
    print_tree(runs, full=full)
    if not trajectory.complete:
        typer.echo("This trajectory is not complete: its writer did not get to the end.")


def _executed(
    trajectory: Trajectory, files: list[str]
) -> tuple[Trajectory, tuple[RunDifference, ...]]:
    from repl_env.rlm.trajectory_rerun import differences, rerun

    from .options.session_options import opening

    contexts = dict(_contexts(trajectory.root, files))
    with opening():
        again = rerun(trajectory, contexts)
    return again, differences(trajectory, again)


def _contexts(root: Run, files: list[str]) -> Iterator[tuple[str, Any]]:
    """The files by variable; one of a JSON context is parsed."""
    types = {note.name: note.type for note in root.contexts}
    for given in files:
        name, path = _named(given, types)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--context") from error
        try:
            yield name, _value(data, types.get(name, "str"))
        except (ValueError, RecursionError) as error:
            raise typer.BadParameter(f"{path}: {error}", param_hint="--context") from error


def _named(given: str, types: Mapping[str, str]) -> tuple[str, Path]:
    name, equals, path = given.partition("=")
    if equals and not Path(given).exists():
        return name, Path(path)
    if len(types) == 1:
        return next(iter(types)), Path(given)
    return Path(given).stem, Path(given)


def _value(data: bytes, kind: str) -> Any:
    if kind == "bytes":
        return data
    text = data.decode("utf-8-sig")
    return text if kind == "str" else json.loads(text)


def _report(again: Trajectory, found: tuple[RunDifference, ...], as_json: bool) -> None:
    if as_json:
        comparison = {
            "same": not found,
            "final_answer": again.root.final_answer,
            "differences": [asdict(each) for each in found],
        }
        typer.echo(json.dumps(comparison, indent=2))
        return
    from .render.recorded_tree import print_differences

    print_differences(again.root, found)

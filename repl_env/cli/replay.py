"""`repl-env replay` and `repl-env view`: a recorded tree of runs, at a terminal or in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.options import (
    OUTPUT,
    ExitStatus,
    JSONOutput,
    PageOptions,
    with_option_groups,
    write_page_file,
)
from repl_env.common.files import read_regular, read_regular_text

if TYPE_CHECKING:
    from repl_env.display.files import NamedFiles
    from repl_env.rlm.replay import RunDifference
    from repl_env.rlm.trajectory import Run, Trajectory


# `repl-env replay TRAJECTORY`: a recorded tree of runs shown, or run again without a model.

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


# `repl-env samples RUN...`: the turns of recorded runs as training samples.

SamplesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="The file to write.",
        rich_help_panel=OUTPUT,
        show_default="standard output",
    ),
]
Masked: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--masked",
        help='Write samples that should not be trained on, too; they have "masked": true.',
        rich_help_panel=OUTPUT,
    ),
]


def samples(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Trajectory files, or folders of these.", show_default=False
        ),
    ],
    out: SamplesFile = None,
    masked: Masked = False,
) -> None:
    """Write each turn of recorded runs as a training sample: one JSON object in each line.

    "prompt" and "completion" are lists of messages, as conversational trainers take them; "reward"
    is that of the whole run. docs/trajectories.md describes the other fields.
    """
    found = [sample for path in _trajectories(runs) for sample in _loaded(path).samples()]
    kept = [sample for sample in found if masked or not sample["masked"]]
    text = "".join(f"{json.dumps(sample)}\n" for sample in kept)
    if out is None:
        typer.echo(text, nl=False)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"{out}: {error.strerror or error}"
            raise typer.BadParameter(message, param_hint="--out") from error
    left_out = len(found) - len(kept)
    also = f"; {left_out} masked ones left out (--masked)" if left_out else ""
    typer.echo(f"{len(kept)} samples{also}", err=True)


def _trajectories(given: list[Path]) -> Iterator[Path]:
    """Yield the files, and those in the folders, in the order of their names."""
    for path in given:
        inside = sorted(path.glob("**/*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise typer.BadParameter(f"{path}: there is no trajectory (*.jsonl) in it")
        yield from inside


def _loaded(path: Path) -> Trajectory:
    from repl_env.rlm.trajectory import Trajectory

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
    from repl_env.env.recordings import Recording

    try:
        Recording.from_json(read_regular_text(path))
    except ValueError:
        return ""
    return (
        f". It is a recorded episode: `repl-env view {path}` shows it, and repl_env.replay runs "
        "its cells again"
    )


def _write_page(trajectory: Path, out: Path, size: int | None) -> None:
    from repl_env.display.pages import trajectory_data

    # The path may be a link, which the person named; a server of pages would not follow it.
    write_page_file(out, size, lambda: trajectory_data(trajectory.resolve()))


def _show(trajectory: Trajectory, path: str | None, full: bool, as_json: bool) -> None:
    from repl_env.cli.trees import as_dict, print_tree

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
    from repl_env.cli.options import opening
    from repl_env.rlm.replay import differences, rerun

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
            data = read_regular(path)
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
    from repl_env.cli.trees import print_differences

    print_differences(again.root, found)


# `repl-env view PATH...`: a local page about runs, episodes and evaluations.

_SERVER = "Server"  # a heading of the help screen

Paths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Trajectory files, results of `repl-env eval`, or folders of them; or recorded "
        "episodes, such as a download of the playground.",
        show_default=False,
    ),
]
Port: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.", rich_help_panel=_SERVER
    ),
]
OpenBrowser: TypeAlias = Annotated[
    bool,
    typer.Option("--open/--no-open", help="Open the page in a browser.", rich_help_panel=_SERVER),
]


@with_option_groups
def view(paths: Paths, page: PageOptions, port: Port = 0, open_browser: OpenBrowser = True) -> None:
    """Show recorded runs, episodes and evaluations in a browser, until Ctrl-C; or write a page."""
    size = page.check()
    from repl_env.display.files import NamedFiles
    from repl_env.display.viewer import viewable

    with TemporaryDirectory(prefix="repl-env-view-") as made:
        with _errors():
            files = NamedFiles([viewable(path, Path(made)) for path in paths])
        if page.html is not None:
            _write(files, page.html, size)
        else:
            _serve(files, port, open_browser=open_browser)


@contextmanager
def _errors() -> Iterator[None]:
    """Report files that cannot be read, or shown, as errors of usage."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None
        message = f"{error.filename}: {error.strerror}" if named else str(error)
        raise typer.BadParameter(message) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _write(files: NamedFiles, out: Path, size: int | None) -> None:
    from repl_env.display.pages import files_data

    with _errors():
        data = files_data(files)
    write_page_file(out, size, lambda: data)


def _serve(files: NamedFiles, port: int, *, open_browser: bool) -> None:
    from repl_env.display.pages import ViewServer
    from repl_env.display.viewer import ViewData

    count = len(files.files())
    with _errors():
        server = ViewServer(ViewData(files), port)
    with server:
        typer.echo(f"Showing {count} {'file' if count == 1 else 'files'} at {server.url}")
        typer.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()

"""`repl-env eval`: a model, or any solver, over a dataset."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from repl_env.cli.model_options import (
    BaseURL,
    KeyVariable,
    ModelOptions,
    SamplingArguments,
    address_of,
    digest_of,
)
from repl_env.cli.options import (
    EVALUATION,
    MODEL,
    OUTPUT,
    ExitStatus,
    JSONOutput,
    PageOptions,
    named,
    with_option_groups,
    write_page_file,
)
from repl_env.cli.run import RunOptions

if TYPE_CHECKING:
    from repl_env.evaluation import Dataset as EvalDataset
    from repl_env.evaluation import Evaluation, ResultsFile, Solver, Summary
    from repl_env.evaluation.dataset import Metric


# The options of `repl-env eval` beside those of runs.

Dataset: TypeAlias = Annotated[
    Path, typer.Argument(help="The dataset: one JSON object in each line (docs/evaluation.md).")
]
Rubric: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RUBRIC",
        help="Rubric: exact, fuzzy, json, list or module:function; by default the rubric that a "
        "line names, else exact.",
        rich_help_panel=EVALUATION,
    ),
]
Concurrency: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of tasks that run at once.", rich_help_panel=EVALUATION)
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="The model to evaluate, or script:FILE.py:FUNCTION; as for run.",
        rich_help_panel=MODEL,
    ),
]
Trajectories: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--trajectory",
        metavar="FOLDER",
        help="Folder for a trajectory file of each task.",
        rich_help_panel=OUTPUT,
    ),
]
SolverName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FUNCTION",
        help="module:function or FILE.py:function that answers a task, instead of a model.",
        rich_help_panel=MODEL,
    ),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The results file; an existing file is continued.",
        rich_help_panel=OUTPUT,
    ),
]
Fresh: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fresh/--resume", help="Discard the results file, or continue it.", rich_help_panel=OUTPUT
    ),
]
Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tasks to evaluate.", rich_help_panel=EVALUATION),
]
Epochs: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1,
        help="Number of times that each task runs. Scores are means over all epochs, with their "
        "standard deviation; with --seed the epochs may be alike.",
        rich_help_panel=EVALUATION,
    ),
]
GiveUpAfter: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        help="Consecutive infrastructure errors that end the evaluation; 0: no limit.",
        rich_help_panel=EVALUATION,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """The tasks of an evaluation and their scores."""

    rubric: Rubric = None
    concurrency: Concurrency = 8
    limit: Limit = None
    epochs: Epochs = 1
    give_up_after: GiveUpAfter = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSolver:
    """A model at an endpoint, or a function."""

    model: Model = None
    base_url: BaseURL = None
    api_key_env: KeyVariable = None
    sampling: SamplingArguments = field(default_factory=SamplingArguments)
    solver: SolverName = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsOptions:
    """The files of an evaluation, and its report."""

    trajectory: Trajectories = None
    out: Out = None
    fresh: Fresh = False
    as_json: JSONOutput = False

    def make_trajectory_folder(self) -> None:
        """Make the folder of `--trajectory`; typer.BadParameter if it cannot be made."""
        if self.trajectory is None:
            return
        try:
            self.trajectory.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{self.trajectory}: {error.strerror or error}"
            raise typer.BadParameter(message, param_hint="--trajectory") from error


# Build the solver of `repl-env eval` from its options.

# Options of `repl-env eval` that are not about a model and its runs.
_OF_ANY_SOLVER = frozenset(
    (
        "dataset rubric concurrency solver out fresh limit epochs give_up_after as_json html "
        "max_size config"
    ).split()
)


def check_choice(
    model: str | None, solver: str | None, context: typer.Context
) -> tuple[str | None, str | None]:
    """Return the one of the two that is given, beside None.

    One on the command line comes before one of the configuration file.

    Raises:
        typer.BadParameter: neither is given, or both; or with a solver an option that would change
            nothing.
    """
    if model is not None and solver is not None:
        given = [_is_on_command_line(context, name) for name in ("model", "solver")]
        if given == [True, False]:
            solver = None
        elif given == [False, True]:
            model = None
    if (model is None) == (solver is None):
        both = "" if model is None else ", not both"
        raise typer.BadParameter(f"give --model or --solver{both}")
    if solver is None:
        return model, None
    for option in context.command.params:
        name = option.name or ""
        if name not in _OF_ANY_SOLVER and _is_on_command_line(context, name):
            message = "goes with --model; a solver is called with the task, and no more"
            raise typer.BadParameter(message, param_hint=option.opts[0])
    return None, solver


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    # By name: some versions of typer have a click of their own, whose values are others.
    return source is not None and source.name == "COMMANDLINE"


def rlm_solver(
    model: ModelOptions, runs: RunOptions, trajectories: Path | None = None
) -> tuple[Solver, dict[str, Any]]:
    """Return a recursive language model as a solver, and the settings that its results depend on.

    `trajectories` is a folder for those of the runs.

    Raises:
        typer.BadParameter, typer.Exit: as `RunOptions.arguments`.
    """
    from repl_env.evaluation.dataset import RLMSolver

    options = runs.arguments(model)
    # The tier is not among the settings, because it does not change an answer.
    settings = {
        **runs.settings,
        "model": model.model,
        **({"sampling": sampling} if (sampling := model.sampling.arguments()) else {}),
        "sub_model": runs.sub_model,
        "base_url": _without_secrets(address_of(model)),
        "source": digest_of(model.model),
        "sub_source": digest_of(runs.sub_model),
        "budget": asdict(options["budget"]),
        "prices": {name: asdict(price) for name, price in options["prices"].items()},
        "preload": list(options["preload"]),
        "limits": asdict(options["limits"]),
    }
    return RLMSolver(options.pop("model"), options, trajectories), settings


def function_solver(reference: str) -> tuple[Solver, dict[str, Any]]:
    """Return the function that `reference` names as a solver, and the settings of its results."""
    from repl_env.evaluation.dataset import FunctionSolver

    found = named(reference, "--solver")
    return FunctionSolver(found.function), {"solver": reference, "source": found.digest}


def metric_of(rubric: str | None) -> tuple[Metric | None, dict[str, Any]]:
    """Return the metric of all tasks, None for that of each task, and the settings of scores."""
    from repl_env.evaluation import dataset

    if rubric is None or rubric in dataset.RUBRICS:
        return dataset.RUBRICS[rubric] if rubric else None, {"rubric": rubric}
    if ":" not in rubric:
        message = f"{rubric!r} is none of {', '.join(dataset.RUBRICS)}, and no module:function"
        raise typer.BadParameter(message, param_hint="'--rubric'")
    found = named(rubric, "--rubric")
    return dataset.metric_of(found.function), {"rubric": rubric, "rubric_source": found.digest}


def _without_secrets(url: str | None) -> str | None:
    """Return `url` without user, password and query, because results are published."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@with_option_groups
def evaluate(
    context: typer.Context,
    dataset: Dataset,
    evaluation: EvaluationOptions,
    solver: EvaluatedSolver,
    runs: RunOptions,
    results: ResultsOptions,
    page: PageOptions,
) -> None:
    """Run a model over a dataset and score its answers; interrupted, the same call goes on."""
    from repl_env.evaluation import read_dataset

    model, function = check_choice(solver.model, solver.solver, context)
    size = page.check()
    metric, rubric_settings = metric_of(evaluation.rubric)
    if model is None:
        assert function is not None
        solving, settings = function_solver(function)
    else:
        endpoint = ModelOptions(model, solver.base_url, solver.api_key_env, solver.sampling)
        solving, settings = rlm_solver(endpoint, runs, results.trajectory)
        results.make_trajectory_folder()
    how = {
        "metric": metric,
        "settings": settings | rubric_settings,
        "concurrency": evaluation.concurrency,
        "give_up_after": evaluation.give_up_after,
    }
    with _files():
        tasks = read_dataset(dataset, evaluation.limit, epochs=evaluation.epochs)
    done, status = _evaluated(tasks, solving, how, results)
    status = report(done, status, results.out, results.as_json)
    if page.html is not None:
        _write_page(done, page.html, size, results.trajectory)
    raise typer.Exit(status)


def _write_page(evaluation: Evaluation, out: Path, size: int | None, runs: Path | None) -> None:
    from repl_env.display.pages import MAX_PAGE_BYTES, evaluation_page_data

    done = evaluation.done
    results = [done[entry.id] for entry in evaluation.dataset.entries if entry.id in done]
    name = evaluation.dataset.path.name
    # After hours of calls a page with cut outputs is better than none.
    write_page_file(out, size or MAX_PAGE_BYTES, lambda: evaluation_page_data(name, results, runs))


def _evaluated(
    tasks: EvalDataset, solving: Solver, how: Mapping[str, Any], options: ResultsOptions
) -> tuple[Evaluation, ExitStatus]:
    """Evaluate `solving` on a dataset; return the evaluation so far, and its exit status."""
    from repl_env.evaluation import Evaluation
    from repl_sandbox.errors import IsolationError

    note = {"dataset": str(tasks.path), "settings": how["settings"]}
    with _files(), _results(options.out, options.fresh, note) as results:
        evaluation = Evaluation(tasks, solving, results=results, fatal=(IsolationError,), **how)
        if results is not None and results.earlier:
            typer.echo(taken_over(evaluation, results), err=True)
        return evaluation, _run(evaluation, solving, how["concurrency"])


@contextmanager
def _files() -> Iterator[None]:
    """Report an error in the dataset or the results file, and exit with its status."""
    from repl_env.evaluation import DatasetError, ResultsError

    try:
        yield
    except (DatasetError, ResultsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitStatus.USAGE) from error
    except OSError as error:
        raise typer.Exit(unwritable(error)) from error


@contextmanager
def _results(out: Path | None, fresh: bool, note: dict[str, Any]) -> Iterator[ResultsFile | None]:
    """Yield the open results file with a note about this call; None without `out`."""
    from repl_env.evaluation import ResultsFile

    if out is None:
        yield None
        return
    results = ResultsFile(out, fresh=fresh)
    try:
        results.note({"time": time.time(), **note})
        yield results
    finally:
        results.close()


def _run(evaluation: Evaluation, solver: Solver, concurrency: int) -> ExitStatus:
    """Run the missing tasks with a progress display, and return the exit status."""
    from repl_env.cli import main
    from repl_env.cli.live import evaluation_progress
    from repl_sandbox.errors import IsolationError

    try:
        with evaluation_progress(evaluation):
            main.run_loop(_carry_out(evaluation, solver, concurrency))
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except IsolationError as error:
        typer.echo(str(error), err=True)
        return ExitStatus.TIER_UNAVAILABLE
    except OSError as error:  # of the results file: those of tasks are their failures
        return unwritable(error)
    return ExitStatus.OK


async def _carry_out(evaluation: Evaluation, solver: Solver, concurrency: int) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # Plain functions, as solvers and as models, wait in threads; the loop's own are a handful.
    threads = ThreadPoolExecutor(max(32, 4 * concurrency))
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        await evaluation.run()
    finally:
        await solver.close()


# The report at the end of an evaluation, and its exit status.


def report(
    evaluation: Evaluation, status: ExitStatus, out: Path | None, as_json: bool
) -> ExitStatus:
    """Print what there is; the exit status."""
    from rich.console import Console

    from repl_env.cli.tables import show
    from repl_env.evaluation import summarize

    summary = summarize(evaluation)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=2))
    else:
        show(Console(), summary)
    if status is ExitStatus.OK:
        status = _verdict(summary)
    if summary.scored < summary.tasks:
        typer.echo(_what_next(summary, out), err=True)
    return status


def taken_over(evaluation: Evaluation, results: ResultsFile) -> str:
    """Return how many results of an earlier call this one takes over."""
    tasks, missing = len(evaluation.dataset.entries), len(evaluation.missing)
    to_run = f"{missing} {'task' if missing == 1 else 'tasks'} to run."
    if not evaluation.done:
        return f"{results.path} has no result of these tasks with these settings; {to_run}"
    return f"{results.path} has results of {tasks - missing} of {tasks} tasks; {to_run}"


def _verdict(summary: Summary) -> ExitStatus:
    from repl_env.errors import INFRASTRUCTURE_KINDS

    if summary.scored == summary.tasks:
        return ExitStatus.OK
    ours = any(failure.error_kind in INFRASTRUCTURE_KINDS for failure in summary.failures)
    return ExitStatus.INFRASTRUCTURE if ours else ExitStatus.FAILED


def _what_next(summary: Summary, out: Path | None) -> str:
    missing = summary.tasks - summary.scored
    left = f"{missing} of {summary.tasks} tasks {'has' if missing == 1 else 'have'} no score."
    if summary.gave_up:
        left = f"Too many tasks in a row failed (--give-up-after). {left}"
    if out is None:
        return f"{left} Nothing is kept; with --out FILE the same call would go on."
    return f"{left} The same call goes on from {out}."


def unwritable(error: OSError) -> ExitStatus:
    """Print why results cannot be written, and return the exit status."""
    typer.echo(f"Results cannot be written: {error.strerror or error}", err=True)
    return ExitStatus.FAILED

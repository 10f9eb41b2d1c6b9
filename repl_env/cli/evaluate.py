"""`repl-env eval`: a model, or any solver, over a dataset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .exit_status import ExitStatus
from .options.budget_options import (
    Calls,
    Dollars,
    Prices,
    Seconds,
    Tokens,
    budget_from,
    prices_from,
)
from .options.help_groups import EVALUATION, MODEL, OUTPUT
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
from .options.model_options import BaseURL, KeyVariable, ModelOptions
from .options.page_options import PagePath, PageSize, check_page, write_page_file
from .options.run_options import (
    Blocks,
    BlocksOption,
    MaxDepth,
    MaxIterations,
    RunOptions,
    SubModel,
    limits_of_runs,
)
from .options.session_options import (
    ImageOption,
    Isolation,
    IsolationOption,
    Preload,
    RequireOption,
    RuntimeOption,
    modules_of,
    opening,
)
from .options.solver_options import check_choice, function_solver, metric_of, rlm_solver
from .render.evaluation_report import report, taken_over, unwritable

if TYPE_CHECKING:
    from repl_env.evaluation import Evaluation, ResultsFile, Solver

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
GiveUpAfter: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        help="Consecutive infrastructure errors that end the evaluation; 0: no limit.",
        rich_help_panel=EVALUATION,
    ),
]
AsJSON: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=OUTPUT)
]


def evaluate(
    context: typer.Context,
    dataset: Dataset,
    rubric: Rubric = None,
    concurrency: Concurrency = 8,
    model: Model = None,
    base_url: BaseURL = None,
    api_key_env: KeyVariable = None,
    sub_model: SubModel = None,
    max_depth: MaxDepth = 2,
    max_iterations: MaxIterations = 30,
    blocks: BlocksOption = Blocks.ALL,
    budget_calls: Calls = 200,
    budget_tokens: Tokens = None,
    budget_usd: Dollars = None,
    budget_seconds: Seconds = None,
    price: Prices = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = None,
    image: ImageOption = None,
    runtime: RuntimeOption = None,
    preload: Preload = None,
    timeout: CellTimeout = 30.0,
    memory: Memory = "1GiB",
    processes: Processes = 64,
    open_files: OpenFiles = 256,
    file_size: FileSize = "256MiB",
    workspace: Workspace = "256MiB",
    output: Output = "64MiB",
    cpu_seconds: CPUSeconds = None,
    interrupt_grace: InterruptGrace = 0.5,
    trajectory: Trajectories = None,
    solver: SolverName = None,
    out: Out = None,
    fresh: Fresh = False,
    limit: Limit = None,
    give_up_after: GiveUpAfter = 20,
    as_json: AsJSON = False,
    html: PagePath = None,
    max_size: PageSize = None,
) -> None:
    """Run a model over a dataset and score its answers; interrupted, the same call goes on."""
    model, solver = check_choice(model, solver, context)
    size = check_page(html, max_size)
    metric, rubric_settings = metric_of(rubric)
    if model is None:
        assert solver is not None
        solving, settings = function_solver(solver)
    else:
        with opening():
            limits = limits_of_runs(
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
        runs = RunOptions(
            model=ModelOptions(model, base_url, api_key_env),
            sub_model=sub_model,
            budget=budget_from(budget_calls, budget_tokens, budget_usd, budget_seconds),
            prices=prices_from(price or ()),
            max_iterations=max_iterations,
            max_depth=max_depth,
            blocks=blocks.value,
            isolation=isolation.value,
            require=None if require is None else require.value,
            image=image,
            runtime=runtime,
            preload=modules_of(preload),
            limits=limits,
        )
        solving, settings = rlm_solver(runs, _folder(trajectory))
    how = {
        "metric": metric,
        "settings": settings | rubric_settings,
        "concurrency": concurrency,
        "give_up_after": give_up_after,
    }
    evaluation, status = _evaluated(dataset, limit, solving, how, out, fresh=fresh)
    status = report(evaluation, status, out, as_json)
    if html is not None:
        _write_page(evaluation, html, size, trajectory)
    raise typer.Exit(status)


def _write_page(evaluation: Evaluation, out: Path, size: int | None, runs: Path | None) -> None:
    from repl_env.display.viewer.html_export import MOST_BYTES, evaluation_page_data

    done = evaluation.done
    results = [done[entry.id] for entry in evaluation.dataset.entries if entry.id in done]
    name = evaluation.dataset.path.name
    # After hours of calls a page with cut outputs is better than none.
    write_page_file(out, size or MOST_BYTES, lambda: evaluation_page_data(name, results, runs))


def _evaluated(
    dataset: Path,
    limit: int | None,
    solving: Solver,
    how: Mapping[str, Any],
    out: Path | None,
    *,
    fresh: bool,
) -> tuple[Evaluation, ExitStatus]:
    """The evaluation of `solving` on a dataset, as far as it came; what ended it, else OK."""
    from repl_env.evaluation import Evaluation, read_dataset
    from repl_sandbox.errors import IsolationError

    note = {"dataset": str(dataset), "settings": how["settings"]}
    with _files():
        tasks = read_dataset(dataset, limit)
        with _results(out, fresh, note) as results:
            evaluation = Evaluation(tasks, solving, results=results, fatal=(IsolationError,), **how)
            if results is not None and results.earlier:
                typer.echo(taken_over(evaluation, results), err=True)
            return evaluation, _run(evaluation, solving, how["concurrency"])


def _folder(path: Path | None) -> Path | None:
    if path is not None:
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{path}: {error.strerror or error}"
            raise typer.BadParameter(message, param_hint="--trajectory") from error
    return path


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
    """The results file, open, with a note of what this call is; None if none is wanted."""
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
    """Run what is missing, and show how far it is; what ended it before its end, else OK."""
    from repl_sandbox.errors import IsolationError

    from . import command_loop
    from .render.evaluation_progress import evaluation_progress

    try:
        with evaluation_progress(evaluation):
            command_loop.run(_carry_out(evaluation, solver, concurrency))
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

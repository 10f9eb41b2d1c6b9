"""`repl-env eval`: a model, or any solver, over a dataset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .exit_status import ExitStatus
from .options.evaluation_options import (
    Dataset,
    EvaluatedSolver,
    EvaluationOptions,
    ResultsOptions,
)
from .options.model_options import ModelOptions
from .options.option_groups import with_option_groups
from .options.page_options import PageOptions, write_page_file
from .options.run_options import RunOptions
from .options.solver_options import check_choice, function_solver, metric_of, rlm_solver
from .render.evaluation_report import report, taken_over, unwritable

if TYPE_CHECKING:
    from repl_env.evaluation import Evaluation, ResultsFile, Solver


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
    model, function = check_choice(solver.model, solver.solver, context)
    size = page.check()
    metric, rubric_settings = metric_of(evaluation.rubric)
    if model is None:
        assert function is not None
        solving, settings = function_solver(function)
    else:
        endpoint = ModelOptions(model, solver.base_url, solver.api_key_env)
        solving, settings = rlm_solver(endpoint, runs, results.trajectory)
        results.make_trajectory_folder()
    how = {
        "metric": metric,
        "settings": settings | rubric_settings,
        "concurrency": evaluation.concurrency,
        "give_up_after": evaluation.give_up_after,
    }
    done, status = _evaluated(dataset, evaluation.limit, solving, how, results)
    status = report(done, status, results.out, results.as_json)
    if page.html is not None:
        _write_page(done, page.html, size, results.trajectory)
    raise typer.Exit(status)


def _write_page(evaluation: Evaluation, out: Path, size: int | None, runs: Path | None) -> None:
    from repl_env.display.viewer.html_export import MAX_PAGE_BYTES, evaluation_page_data

    done = evaluation.done
    results = [done[entry.id] for entry in evaluation.dataset.entries if entry.id in done]
    name = evaluation.dataset.path.name
    # After hours of calls a page with cut outputs is better than none.
    write_page_file(out, size or MAX_PAGE_BYTES, lambda: evaluation_page_data(name, results, runs))


def _evaluated(
    dataset: Path,
    limit: int | None,
    solving: Solver,
    how: Mapping[str, Any],
    options: ResultsOptions,
) -> tuple[Evaluation, ExitStatus]:
    """Evaluate `solving` on a dataset; return the evaluation so far, and its exit status."""
    from repl_env.evaluation import Evaluation, read_dataset
    from repl_sandbox.errors import IsolationError

    note = {"dataset": str(dataset), "settings": how["settings"]}
    with _files():
        tasks = read_dataset(dataset, limit)
        with _results(options.out, options.fresh, note) as results:
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

"""`repl-env eval`: a model, or any solver, over a dataset."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .solver_options import ModelChoice, function_solver, metric_of, rlm_solver
from .status import Status

if TYPE_CHECKING:
    from repl_env.evaluation import Evaluation, ResultsFile, Solver, Summary


def evaluate(
    dataset: Annotated[Path, typer.Argument(help="A JSON object in each line; docs/evaluation.md")],
    rubric: Annotated[
        str | None,
        typer.Option(
            help="exact, fuzzy, json, list or module:function; without it what a line names, "
            "else exact."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at once.")] = 8,
    model: Annotated[
        str | None, typer.Option(help="A model's name, or script:FILE.py:function.")
    ] = None,
    sub_model: Annotated[str | None, typer.Option(help="The model of sub-calls.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible endpoint, else OPENAI_BASE_URL; its key is OPENAI_API_KEY."
        ),
    ] = None,
    max_iterations: Annotated[int, typer.Option(min=1, help="Turns of each run.")] = 30,
    max_depth: Annotated[int, typer.Option(min=1, help="Runs below runs.")] = 2,
    budget_calls: Annotated[int, typer.Option(min=0, help="For each task: calls.")] = 200,
    budget_tokens: Annotated[
        int | None, typer.Option(min=0, help="For each task: tokens that models write.")
    ] = None,
    budget_usd: Annotated[float | None, typer.Option(min=0, help="For each task: cost.")] = None,
    budget_seconds: Annotated[
        float | None, typer.Option(min=0, help="For each task: time.")
    ] = None,
    isolation: Annotated[
        str | None, typer.Option(help="jailed, confined, process; the strongest by default.")
    ] = None,
    require: Annotated[str | None, typer.Option(help="The weakest tier to accept.")] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            help="module:function or FILE.py:function that answers a task, instead of a model."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The results file; an earlier one is carried on.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh/--resume", help="Forget what the results file has, or carry it on."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many tasks.")] = None,
    give_up_after: Annotated[
        int, typer.Option(min=0, help="Failures of ours in a row that end it; 0: none do.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Run a model over a dataset and score its answers; interrupted, the same call goes on."""
    from repl_env.evaluation import DatasetError, Evaluation, ResultsError, read_dataset
    from repl_env.rlm.budget import Budget
    from repl_sandbox.errors import IsolationError

    if (solver is None) == (model is None and base_url is None):
        raise typer.BadParameter("either a model (--model, --base-url) or --solver is wanted")
    metric, rubric_settings = metric_of(rubric)
    if solver is not None:
        solving, settings = function_solver(solver)
    else:
        budget = Budget(budget_calls, None, budget_tokens, budget_usd, budget_seconds)
        bounds = (max_iterations, max_depth, isolation, require)
        solving, settings = rlm_solver(ModelChoice(model, sub_model, base_url, budget, *bounds))
    settings |= rubric_settings
    try:
        tasks = read_dataset(dataset, limit)
        with _results(out, fresh) as results:
            if results is not None:
                results.note({"time": time.time(), "dataset": str(dataset), "settings": settings})
            evaluation = Evaluation(
                tasks,
                solving,
                metric=metric,
                settings=settings,
                results=results,
                concurrency=concurrency,
                give_up_after=give_up_after,
                fatal=(IsolationError,),
            )
            status = _run(evaluation, solving, concurrency)
    except (DatasetError, ResultsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Status.USAGE) from error
    raise typer.Exit(_report(evaluation, status, out, as_json))


@contextmanager
def _results(out: Path | None, fresh: bool) -> Iterator[ResultsFile | None]:
    """The results file, open; None if none is wanted."""
    from repl_env.evaluation import ResultsFile

    if out is None:
        yield None
        return
    results = ResultsFile(out, fresh=fresh)
    try:
        yield results
    finally:
        results.close()


def _run(evaluation: Evaluation, solver: Solver, concurrency: int) -> Status:
    """Run what is missing, under a bar; what ended it before its end, else OK."""
    import asyncio

    from repl_sandbox.errors import IsolationError

    from .evaluation_bar import EvaluationBar

    try:
        with EvaluationBar(evaluation):
            asyncio.run(_carry_out(evaluation, solver, concurrency))
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except IsolationError as error:
        typer.echo(str(error), err=True)
        return Status.TIER_UNAVAILABLE
    except OSError as error:  # of the results file: those of tasks are their failures
        typer.echo(f"Results cannot be written: {error.strerror or error}", err=True)
        return Status.FAILED
    return Status.OK


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


def _report(evaluation: Evaluation, status: Status, out: Path | None, as_json: bool) -> Status:
    """Print what there is; the exit status."""
    from repl_env.evaluation import summarize

    from .summary_table import show

    summary = summarize(evaluation)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=2))
    else:
        show(Console(), summary)
    if status is Status.OK:
        status = _verdict(summary)
    if summary.scored < summary.tasks:
        typer.echo(_what_next(summary, out), err=True)
    return status


def _verdict(summary: Summary) -> Status:
    from repl_env.evaluation.evaluator import OURS

    if summary.scored == summary.tasks:
        return Status.OK
    ours = any(failure.error_kind in OURS for failure in summary.failures)
    return Status.INFRASTRUCTURE if ours else Status.FAILED


def _what_next(summary: Summary, out: Path | None) -> str:
    left = f"{summary.tasks - summary.scored} of {summary.tasks} tasks have no score."
    if summary.gave_up:
        left = f"Too many tasks in a row failed (--give-up-after). {left}"
    if out is None:
        return f"{left} Nothing is kept; with --out FILE the same call would go on."
    return f"{left} The same call goes on from {out}."

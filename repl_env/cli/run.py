"""`repl-env run`: one question to a recursive language model, with a live display.

The answer is what goes to stdout; the display, the totals and complaints go to stderr.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_status import ExitStatus
from .options.budget_options import refusal_text
from .options.model_options import ModelOptions
from .options.option_groups import with_option_groups
from .options.run_input import RunInput
from .options.run_options import RunOptions
from .options.run_output import RunOutput
from .options.session_options import opening

if TYPE_CHECKING:
    from repl_env.rlm.rlm_runner import RLM
    from repl_env.rlm.run_result import RLMRunResult

    from .render.live_progress import Progress
    from .render.run_report import RunReport


@with_option_groups
def run(
    question: Annotated[str, typer.Argument(help="The question to answer.", show_default=False)],
    model: ModelOptions,
    run_input: RunInput,
    runs: RunOptions,
    output: RunOutput,
) -> None:
    """Ask a model that works in a jailed REPL, on contexts of any size, and print its answer.

    Exit status: 0 answered, 1 no answer, 2 wrong usage, 3 no such tier here, 4 budget used up,
    5 model or sandbox failed, 130 interrupted.
    """
    output.check()
    trajectory = output.trajectory_file()
    of_run = run_input.arguments()
    arguments = {**runs.arguments(model), "trajectory": trajectory}
    report = _solve(question, of_run, arguments, _display(arguments, output))
    report.show(as_json=output.as_json, quiet=output.quiet)
    raise typer.Exit(report.status)


def _solve(
    question: str, of_run: Mapping[str, Any], arguments: Mapping[str, Any], progress: Progress
) -> RunReport:
    """Run to the end, and return the report with the exit status.

    Raises:
        typer.BadParameter, typer.Exit: an argument is wrong; there is no such tier.
    """
    from repl_env.errors import BudgetExceeded, EpisodeAborted, ModelError
    from repl_env.rlm.rlm_runner import RLM
    from repl_sandbox.errors import IsolationError, SandboxError

    from . import command_loop
    from .render.run_report import RunReport

    report = RunReport(progress)
    with opening():
        rlm = RLM(on_event=progress.on_event, **arguments)
    try:
        with progress:
            report.done(command_loop.run(_answered(rlm, question, of_run, arguments, report)))
    except KeyboardInterrupt:
        report.failed(ExitStatus.INTERRUPTED, "interrupted; the calls in flight were cancelled")
    except IsolationError as error:
        report.failed(ExitStatus.TIER_UNAVAILABLE, str(error), error)
    except BudgetExceeded as error:
        report.failed(ExitStatus.BUDGET, refusal_text(error), error)
    except ModelError as error:
        report.failed(ExitStatus.INFRASTRUCTURE, f"{_name_of(arguments['model'])}: {error}", error)
    except (EpisodeAborted, SandboxError) as error:
        report.failed(ExitStatus.INFRASTRUCTURE, str(error), error)
    except OSError as error:  # of the trajectory, or of a context that is gone meanwhile
        report.failed(ExitStatus.FAILED, str(error), error)
    except (TypeError, ValueError) as error:
        if progress.tree.root is not None:
            raise  # not about an argument: those are looked at before a run begins
        raise typer.BadParameter(str(error)) from error
    return report


def _name_of(model: Any) -> str:
    return "the model" if model.name is None else f"model {model.name!r}"


async def _answered(
    rlm: RLM,
    question: str,
    of_run: Mapping[str, Any],
    arguments: Mapping[str, Any],
    report: RunReport,
) -> RLMRunResult:
    from asyncio import CancelledError

    try:
        if (file := arguments["trajectory"]) is not None:
            file.unlink(missing_ok=True)  # only `--force` has let a file through to here
        return await rlm.arun(question, **of_run)
    except CancelledError as error:
        report.result = getattr(error, "result", None)
        raise
    finally:
        for name in ("model", "sub_model"):
            if name in arguments:
                await arguments[name].close()


def _display(arguments: Mapping[str, Any], output: RunOutput) -> Progress:
    from rich.console import Console

    from .render.live_progress import progress

    console = None if output.quiet else Console(stderr=True)
    return progress(console, arguments["budget"], arguments["prices"], verbose=output.verbose)

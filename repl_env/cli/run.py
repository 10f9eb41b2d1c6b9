"""`repl-env run`: one question to a recursive language model, with a live display.

The answer is what goes to stdout; the display, the totals and complaints go to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    refusal_text,
)
from .options.context_files import STDIN, ContextFiles, contexts_from
from .options.help_groups import INPUT, OUTPUT
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
from .options.model_options import BaseURL, KeyVariable, ModelName, ModelOptions
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

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_env.rlm.rlm_runner import RLM
    from repl_env.rlm.run_result import RLMRunResult

    from .render.live_progress import Progress
    from .render.run_report import RunReport


def run(
    question: Annotated[str, typer.Argument(help="The question to answer.", show_default=False)],
    model: ModelName,
    context: ContextFiles = None,
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin",
            help="Read a context from standard input, like --context -.",
            rich_help_panel=INPUT,
        ),
    ] = False,
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
    trajectory: Annotated[
        Path | None,
        typer.Option(
            "--trajectory",
            metavar="FILE",
            help="File for the trajectory of the run.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a trajectory file that is there.", rich_help_panel=OUTPUT
        ),
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="A JSON schema that the answer must fit.",
            rich_help_panel=INPUT,
        ),
    ] = None,
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
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the answer only.", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print code, output and errors of each cell to stderr.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Ask a model that works in a jailed REPL, on contexts of any size, and print its answer.

    Exit status: 0 answered, 1 no answer, 2 wrong usage, 3 no such tier here, 4 budget used up,
    5 model or sandbox failed, 130 interrupted.
    """
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    prices = prices_from(price or ())
    budget = budget_from(budget_calls, budget_tokens, budget_usd, budget_seconds)
    file = _writable(trajectory, force=force)
    asked = {"answer_schema": _schema(schema), **_about(context or (), stdin=stdin)}
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
        budget=budget,
        prices=prices,
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
    arguments = {**runs.arguments(), "trajectory": file}
    ending = _solve(
        question, asked, arguments, _display(budget, prices, quiet=quiet, verbose=verbose)
    )
    ending.show(as_json=as_json, quiet=quiet)
    raise typer.Exit(ending.status)


def _about(context: Sequence[str], *, stdin: bool) -> dict[str, Any]:
    """Return the contexts of the run, as arguments of `RLM.arun`."""
    contexts = contexts_from([*context, *([STDIN] if stdin else ())])
    if list(contexts) == ["context"]:
        return contexts
    return {"contexts": contexts} if contexts else {}


def _solve(
    question: str, asked: Mapping[str, Any], arguments: Mapping[str, Any], progress: Progress
) -> RunReport:
    """Run it to whatever end, and name the status that this has.

    Raises:
        typer.BadParameter, typer.Exit: an argument is wrong; there is no such tier.
    """
    from repl_env.errors import BudgetExceeded, EpisodeAborted, ModelError
    from repl_env.rlm.rlm_runner import RLM
    from repl_sandbox.errors import IsolationError, SandboxError

    from . import command_loop
    from .render.run_report import RunReport

    ending = RunReport(progress)
    with opening():
        rlm = RLM(on_event=progress.on_event, **arguments)
    try:
        with progress:
            ending.done(command_loop.run(_asked(rlm, question, asked, arguments, ending)))
    except KeyboardInterrupt:
        ending.failed(ExitStatus.INTERRUPTED, "interrupted; the calls in flight were cancelled")
    except IsolationError as error:
        ending.failed(ExitStatus.TIER_UNAVAILABLE, str(error), error)
    except BudgetExceeded as error:
        ending.failed(ExitStatus.BUDGET, refusal_text(error), error)
    except ModelError as error:
        ending.failed(ExitStatus.INFRASTRUCTURE, f"{_who(arguments['model'])}: {error}", error)
    except (EpisodeAborted, SandboxError) as error:
        ending.failed(ExitStatus.INFRASTRUCTURE, str(error), error)
    except OSError as error:  # of the trajectory, or of a context that is gone meanwhile
        ending.failed(ExitStatus.FAILED, str(error), error)
    except (TypeError, ValueError) as error:
        if progress.tree.root is not None:
            raise  # not about an argument: those are looked at before a run begins
        raise typer.BadParameter(str(error)) from error
    return ending


def _who(model: Any) -> str:
    return "the model" if model.name is None else f"model {model.name!r}"


async def _asked(
    rlm: RLM,
    question: str,
    asked: Mapping[str, Any],
    arguments: Mapping[str, Any],
    ending: RunReport,
) -> RLMRunResult:
    from asyncio import CancelledError

    try:
        if (file := arguments["trajectory"]) is not None:
            file.unlink(missing_ok=True)  # only `--force` has let a file through to here
        return await rlm.arun(question, **asked)
    except CancelledError as error:
        ending.result = getattr(error, "result", None)
        raise
    finally:
        for name in ("model", "sub_model"):
            if name in arguments:
                await arguments[name].close()


def _display(
    budget: Budget, prices: Mapping[str, Price], *, quiet: bool, verbose: bool
) -> Progress:
    from rich.console import Console

    from .render.live_progress import progress

    console = None if quiet else Console(stderr=True)
    return progress(console, budget, prices, verbose=verbose)


def _schema(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--schema") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint="--schema") from error


def _writable(path: Path | None, *, force: bool) -> Path | None:
    """Return the path of the file to write; for a link, its target."""
    from repl_env.common.replace_target import replace_target

    if path is None:
        if force:
            raise typer.BadParameter("--force goes with --trajectory")
        return None
    try:
        target = replace_target(path)
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise typer.BadParameter(message, param_hint="--trajectory") from error
    if not target.parent.is_dir():
        message = f"{path}: there is no directory {target.parent}"
    elif target.is_dir():
        message = f"{path} is a directory"
    elif target.exists() and not force:
        message = f"{path} exists; --force replaces it"
    else:
        return target
    raise typer.BadParameter(message, param_hint="--trajectory")

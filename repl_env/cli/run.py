"""`repl-env run`: one question to a recursive language model, with a live display.

The answer is what goes to stdout; the display, the totals and complaints go to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.model_options import (
    STDIN,
    BudgetOptions,
    ContextFiles,
    ModelOptions,
    check_price,
    contexts_from,
    model_from,
    refusal_text,
)
from repl_env.cli.options import (
    INPUT,
    MODEL,
    OUTPUT,
    TURNS,
    ExitStatus,
    LimitOptions,
    SessionOptions,
    opening,
    with_option_groups,
)
from repl_env.common.files import read_regular_text, replace_target

if TYPE_CHECKING:
    from repl_env.cli.live import Progress, RunReport
    from repl_env.rlm.config import RLMRunResult
    from repl_env.rlm.runner import RLM
    from repl_sandbox import Limits


# The options of `repl-env run` for the input of the run: contexts and the schema of the answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """The input of a run beside the question."""

    context: ContextFiles = None
    stdin: Annotated[
        bool,
        typer.Option("--stdin", help="Read a context from standard input.", rich_help_panel=INPUT),
    ] = False
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="A JSON schema that the answer must fit.",
            rich_help_panel=INPUT,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `RLM.arun`.

        Raises:
            typer.BadParameter: naming the option: a file cannot be read, or is not JSON.
        """
        schema = _schema(self.schema)
        contexts = contexts_from([*(self.context or ()), *([STDIN] if self.stdin else ())])
        if list(contexts) == ["context"]:
            return {"answer_schema": schema, **contexts}
        return {"answer_schema": schema, **({"contexts": contexts} if contexts else {})}


def _schema(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(read_regular_text(path))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--schema") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint="--schema") from error


# The options of runs of a model, which `run` and `eval` share.


class Blocks(StrEnum):
    """The code blocks of a reply that are run."""

    ALL = "all"
    FIRST = "first"
    UNTIL_DONE = "until_done"
    UNTIL_ERROR = "until_error"


class PromptForm(StrEnum):
    """The form of a model's instructions."""

    FULL = "full"
    SHORT = "short"


SubModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sub-model",
        metavar="MODEL",
        help="Model that answers sub-calls.",
        show_default="--model",
        rich_help_panel=MODEL,
    ),
]
MaxDepth: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-depth",
        min=1,
        help="Maximum levels of runs; 1 allows no child runs.",
        rich_help_panel=TURNS,
    ),
]
MaxIterations: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-iterations",
        min=1,
        help="Maximum turns of a run, before a last one for the answer.",
        rich_help_panel=TURNS,
    ),
]
BlocksOption: TypeAlias = Annotated[
    Blocks,
    typer.Option(
        "--blocks",
        metavar="WHICH",
        help="Code blocks of a reply that are run.",
        rich_help_panel=TURNS,
    ),
]


PromptsOption: TypeAlias = Annotated[
    PromptForm,
    typer.Option(
        "--prompts",
        metavar="FORM",
        help="Instructions of the model: full, or short for models below a billion parameters.",
        rich_help_panel=MODEL,
    ),
]
ExamplesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--examples",
        metavar="FILE",
        help="Conversations before the question, for few-shot prompting: a JSON list of lists of "
        'messages, or one list or {"messages": list} in each line.',
        rich_help_panel=MODEL,
    ),
]
Prefix: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="The beginning of each reply, which the model goes on from; \\n is a new line.",
        rich_help_panel=MODEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """The prompt of runs."""

    prompts: PromptsOption = PromptForm.FULL
    examples: ExamplesFile = None
    prefix: Prefix = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `RLM` that are given.

        Raises:
            typer.BadParameter: the file of examples cannot be read, or has none.
        """
        given = {
            "prompts": None if self.prompts is PromptForm.FULL else self.prompts.value,
            "examples": None if self.examples is None else _examples(self.examples),
            "prefix": None if self.prefix is None else self.prefix.replace("\\n", "\n"),
        }
        return {name: value for name, value in given.items() if value is not None}


def _examples(path: Path) -> Any:
    from repl_env.rlm.config import checked_examples

    try:
        text = read_regular_text(path)
        try:
            found = json.loads(text)
        except ValueError:  # a conversation in each line
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        found = [found] if isinstance(found, dict) else found
        conversations = [
            each["messages"] if isinstance(each, dict) and "messages" in each else each
            for each in found
        ]
        return checked_examples(conversations)
    except OSError as error:
        problem = error.strerror or str(error)
    except (TypeError, ValueError, RecursionError, KeyError) as error:
        problem = str(error)
    raise typer.BadParameter(f"{path}: {problem}", param_hint="--examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of runs beside their model."""

    sub_model: SubModel = None
    prompt: PromptOptions = field(default_factory=PromptOptions)
    max_depth: MaxDepth = 2
    max_iterations: MaxIterations = 30
    blocks: BlocksOption = Blocks.ALL
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)

    @property
    def bounds(self) -> dict[str, Any]:
        """The arguments of `RLM` that bound each run."""
        return {
            "max_iterations": self.max_iterations,
            "max_depth": self.max_depth,
            "blocks": self.blocks.value,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `RLM` that an answer depends on, as JSON."""
        return {**self.bounds, **self.prompt.arguments()}

    def session_limits(self) -> Limits:
        """Return the limits of sessions, whose calls of the host may take as long as a run.

        Raises:
            typer.BadParameter: naming the field.
        """
        from repl_env.rlm.runner import HOST_TIMEOUT

        return self.limits.limits(host_timeout=HOST_TIMEOUT)

    def arguments(self, model: ModelOptions) -> dict[str, Any]:
        """Return the arguments of `RLM`, with new models, which the caller closes.

        Raises:
            typer.BadParameter, typer.Exit: as `model_from`; an option has a wrong value; a budget
                in dollars lacks a price.
        """
        arguments: dict[str, Any] = {
            **self.settings,
            "budget": self.budget.budget(),
            "prices": self.budget.prices(),
            **self.session.arguments(),
            "limits": self.session_limits(),
            "model": model_from(model),
        }
        if self.sub_model is not None:
            other = replace(model, model=self.sub_model)
            arguments["sub_model"] = model_from(other, "--sub-model")
        for name in ("model", "sub_model"):
            if name in arguments:
                check_price(arguments["budget"], arguments["prices"], arguments[name].name)
        return arguments


# The options of `repl-env run` for the output of the run.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """The trajectory file, and the texts on stdout and stderr."""

    trajectory: Annotated[
        Path | None,
        typer.Option(
            "--trajectory",
            metavar="FILE",
            help="File for the trajectory of the run.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing trajectory.", rich_help_panel=OUTPUT),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the answer only.", rich_help_panel=OUTPUT)
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print code, output and errors of each cell to stderr.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=OUTPUT),
    ] = False

    def check(self) -> None:
        """Raise typer.BadParameter if two options contradict each other."""
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")
        if self.force and self.trajectory is None:
            raise typer.BadParameter("--force goes with --trajectory")

    def trajectory_file(self) -> Path | None:
        """Return the path of the file to write; for a link, its target.

        Raises:
            typer.BadParameter: the file exists and `force` is false, or cannot be written.
        """
        if self.trajectory is None:
            return None
        try:
            target = replace_target(self.trajectory)
        except OSError as error:
            raise _unwritable(f"{self.trajectory}: {error.strerror or error}") from error
        if not target.parent.is_dir():
            raise _unwritable(f"{self.trajectory}: there is no directory {target.parent}")
        if target.is_dir():
            raise _unwritable(f"{self.trajectory} is a directory")
        if target.exists() and not self.force:
            raise _unwritable(f"{self.trajectory} exists; --force replaces it")
        return target


def _unwritable(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--trajectory")


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
    report.show(as_json=output.as_json, quiet=output.quiet, trajectory=trajectory)
    raise typer.Exit(report.status)


def _solve(
    question: str, of_run: Mapping[str, Any], arguments: Mapping[str, Any], progress: Progress
) -> RunReport:
    """Run to the end, and return the report with the exit status.

    Raises:
        typer.BadParameter, typer.Exit: an argument is wrong; there is no such tier.
    """
    from repl_env.cli import main
    from repl_env.cli.live import RunReport
    from repl_env.errors import BudgetExceeded, EpisodeAborted, ModelError
    from repl_env.rlm.runner import RLM
    from repl_sandbox.errors import IsolationError, SandboxError

    report = RunReport(progress)
    with opening():
        rlm = RLM(on_event=progress.on_event, **arguments)
    try:
        with progress:
            report.done(main.run_loop(_answered(rlm, question, of_run, arguments, report)))
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

    from repl_env.cli.live import progress

    console = None if output.quiet else Console(stderr=True)
    return progress(console, arguments["budget"], arguments["prices"], verbose=output.verbose)

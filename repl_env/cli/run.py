"""`repl-env run`: one question to a recursive language model, with a live display.

The answer is what goes to stdout; the display, the totals and complaints go to stderr.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .context_files import STDIN, ContextFiles, contexts_from
from .model_options import BaseURL, KeyVariable, ModelName, ModelOptions, model_from
from .session_options import (
    CellTimeout,
    Isolation,
    IsolationOption,
    Memory,
    Preload,
    RequireOption,
    modules_of,
    opening,
)
from .status import Status

if TYPE_CHECKING:
    from repl_env.rlm.budget import Budget, Price

    from .progress import Progress

# What went wrong on our side, not the model's: API.md names them.
_OURS = frozenset({"sandbox", "llm", "cancelled"})


class Blocks(StrEnum):
    """Which of a reply's code blocks are run."""

    ALL = "all"
    FIRST = "first"
    UNTIL_DONE = "until_done"
    UNTIL_ERROR = "until_error"


def run(
    question: Annotated[str, typer.Argument(help="What is asked.", show_default=False)],
    model: ModelName,
    context: ContextFiles = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Standard input is a context, as --context -.")
    ] = False,
    base_url: BaseURL = None,
    api_key_env: KeyVariable = None,
    sub_model: Annotated[
        str | None, typer.Option("--sub-model", help="For sub-calls. [default: --model]")
    ] = None,
    max_depth: Annotated[
        int, typer.Option("--max-depth", min=1, help="1: no runs below the root.")
    ] = 2,
    max_iterations: Annotated[
        int, typer.Option("--max-iterations", min=1, help="Turns that a run may take.")
    ] = 30,
    blocks: Annotated[
        Blocks, typer.Option("--blocks", help="Which of a reply's code blocks are run.")
    ] = Blocks.ALL,
    budget_calls: Annotated[
        int, typer.Option("--budget-calls", help="Questions to models, of the whole tree.")
    ] = 200,
    budget_tokens: Annotated[
        str | None,
        typer.Option(
            "--budget-tokens", metavar="IN[:OUT]", help="Tokens in, or in and out; :OUT for out."
        ),
    ] = None,
    budget_usd: Annotated[float | None, typer.Option("--budget-usd", help="US dollars.")] = None,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", help="Wall time.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price", metavar="MODEL=IN:OUT", help="US dollars for a million tokens; repeat."
        ),
    ] = None,
    trajectory: Annotated[
        Path | None, typer.Option("--trajectory", metavar="FILE", help="Write down the whole run.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help="A JSON schema that the answer must fit."),
    ] = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = None,
    preload: Preload = None,
    timeout: CellTimeout = 30.0,
    memory: Memory = "1GiB",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the answer.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Ask a model that works in a jailed REPL, on contexts of any size, and print its answer.

    Exit: 0 answered, 1 no answer, 2 usage, 3 no such tier here, 4 the budget ran out, 5 a model or
    a sandbox failed, 130 interrupted.
    """
    options = ModelOptions(model, base_url, api_key_env)
    prices = dict(_price(one) for one in price or ())
    budget = _budget(budget_calls, budget_tokens, budget_usd, budget_seconds)
    arguments: dict[str, Any] = {
        "max_depth": max_depth,
        "max_iterations": max_iterations,
        "blocks": blocks.value,
        "budget": budget,
        "prices": prices or None,
        "trajectory": _writable(trajectory),
        "isolation": isolation.value,
        "require": None if require is None else require.value,
        "preload": modules_of(preload),
    }
    asked: dict[str, Any] = {"answer_schema": _schema(schema)}
    contexts = contexts_from([*(context or ()), *([STDIN] if stdin else ())])
    if list(contexts) == ["context"]:
        asked["context"] = contexts["context"]
    elif contexts:
        asked["contexts"] = contexts
    arguments["model"] = model_from(options)
    if sub_model is not None:
        arguments["sub_model"] = model_from(replace(options, model=sub_model))
    with opening():
        from repl_sandbox import Limits

        arguments["limits"] = Limits(memory=memory, timeout=timeout)
    ending = _solve(question, asked, arguments, _display(budget, prices, quiet))
    ending.show(as_json=as_json, quiet=quiet)
    raise typer.Exit(ending.status)


class Ending:
    """What a run came to: its result, whole or partial, its status, and why if it was cut short."""

    def __init__(self, progress: Progress, began: float) -> None:
        self.progress = progress
        self.began = began
        self.result: Any = None
        self.status = Status.FAILED
        self.reason: str | None = None

    def done(self, result: Any) -> None:
        """The run ended by itself."""
        self.result, self.status = result, status_of(result)
        if self.status is Status.BUDGET:
            self.reason = "the budget ran out; the answer is what there was"
        elif self.status is not Status.OK:
            self.reason = f"no answer: {_get(result, 'error_kind') or _get(result, 'stop_reason')}"

    def failed(self, error: BaseException, status: Status, reason: str) -> None:
        """The run was cut short; what it had so far may be with the error."""
        self.result = _get(error, "result")
        self.status, self.reason = status, reason

    def show(self, *, as_json: bool, quiet: bool) -> None:
        """The answer to stdout; then, to stderr, the totals and the reason."""
        from .terminal_text import harmless, one_line

        answer = _get(self.result, "final_answer")
        if as_json:
            typer.echo(json.dumps(self.as_json(), ensure_ascii=False))
        elif answer is not None:
            typer.echo(harmless(answer) if sys.stdout.isatty() else answer)
        if self.reason is not None:
            typer.echo(f"repl-env: {one_line(self.reason, 500)}", err=True)
        if not quiet:
            typer.echo(self.totals(), err=True)

    def totals(self) -> str:
        """One line: how it ended, what it took."""
        from .progress import amounts, duration

        tree = self.progress.tree
        turns = _get(self.result, "iterations", 0 if tree.root is None else tree.root.turn)
        took = duration(time.monotonic() - self.began)
        return f"{turns} turn{'' if turns == 1 else 's'} · {amounts(self._spent())} · {took}"

    def as_json(self) -> dict[str, Any]:
        """The result for programs; `usage` has what is known also if there is no result."""
        result, spent = self.result, self._spent()
        return {
            "answer": _get(result, "final_answer"),
            "answer_value": _get(result, "answer_value"),
            "stop_reason": _get(result, "stop_reason")
            or ("cancelled" if self.status is Status.INTERRUPTED else None),
            "error_kind": _get(result, "error_kind"),
            "reason": self.reason,
            "iterations": _get(result, "iterations"),
            "usage": asdict(spent),
            "cost": None if spent.unpriced else spent.usd,
            "seconds": round(time.monotonic() - self.began, 3),
            "status": int(self.status),
        }

    def _spent(self) -> Any:
        from repl_env.rlm.budget import Spent

        from .run_tree import exact

        usage = _get(self.result, "usage")
        return exact(usage) if isinstance(usage, Spent) else self.progress.tree.spent()


def _solve(
    question: str, asked: Mapping[str, Any], arguments: Mapping[str, Any], progress: Progress
) -> Ending:
    """Run it to whatever end, and name the status that this has.

    Raises:
        typer.BadParameter, typer.Exit: an argument is wrong; there is no such tier.
    """
    from repl_env.errors import BudgetExceeded, EpisodeAborted, ModelError
    from repl_env.rlm.runner import RLM

    ending = Ending(progress, time.monotonic())
    try:
        with opening():
            rlm = RLM(watch=progress.watch, **arguments)
            with progress:
                ending.done(asyncio.run(_asked(rlm, question, asked, ending)))
    except KeyboardInterrupt as error:
        partial = ending.result
        ending.failed(error, Status.INTERRUPTED, "interrupted; every call in flight was cancelled")
        ending.result = ending.result or partial
    except BudgetExceeded as error:
        ending.failed(error, Status.BUDGET, str(error))
    except (ModelError, EpisodeAborted) as error:
        ending.failed(error, Status.INFRASTRUCTURE, str(error))
    return ending


async def _asked(rlm: Any, question: str, asked: Mapping[str, Any], ending: Ending) -> Any:
    try:
        return await rlm.arun(question, **asked)
    except asyncio.CancelledError as error:
        ending.result = _get(error, "result")
        raise


def status_of(result: Any) -> Status:
    """The exit status of a result: what stopped the run goes before what it has as an answer."""
    if _get(result, "stop_reason") == "budget":
        return Status.BUDGET
    if _get(result, "final_answer") is not None:
        return Status.OK
    return Status.INFRASTRUCTURE if _get(result, "error_kind") in _OURS else Status.FAILED


def _get(holder: Any, name: str, default: Any = None) -> Any:
    """A field of a result that may be partial, or may not be there."""
    return getattr(holder, name, default)


def _display(budget: Budget, prices: Mapping[str, Price], quiet: bool) -> Progress:
    from rich.console import Console

    from .progress import progress
    from .run_tree import RunTree

    if quiet:
        return _Silent(RunTree(prices))
    return progress(Console(stderr=True), budget, prices)


class _Silent(nullcontext):  # type: ignore[type-arg]  # what it gives when entered is not used
    """Keeps count and shows nothing."""

    def __init__(self, tree: Any) -> None:
        super().__init__(self)
        self.tree = tree
        self.watch = tree.feed


def _budget(calls: int, tokens: str | None, usd: float | None, seconds: float | None) -> Budget:
    from repl_env.rlm.budget import Budget

    into, _, out = (tokens or "").partition(":")
    try:
        return Budget(
            calls=calls,
            input_tokens=_tokens(into),
            output_tokens=_tokens(out),
            usd=usd,
            seconds=seconds,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--budget-…") from error


def _tokens(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no number of tokens", param_hint="--budget-tokens"
        ) from None


def _price(given: str) -> tuple[str, Price]:
    from repl_env.rlm.budget import Price

    name, _, pair = given.rpartition("=")
    numbers = _numbers(pair.split(":"))
    if not name or len(numbers) != 2:
        raise typer.BadParameter(f"{given!r} must be MODEL=IN:OUT", param_hint="--price")
    return name, Price(*numbers)


def _numbers(texts: Sequence[str]) -> list[float]:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(math.isfinite(one) and one >= 0 for one in numbers) else []


def _schema(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--schema") from error
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint="--schema") from error


def _writable(path: Path | None) -> Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"{path}: there is no directory {path.absolute().parent}", param_hint="--trajectory"
        )
    return path

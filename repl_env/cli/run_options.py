"""How runs of a model work, said by options: `run` and `eval` share them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from repl_sandbox import Limits


class Blocks(StrEnum):
    """Which of a reply's code blocks are run."""

    ALL = "all"
    FIRST = "first"
    UNTIL_DONE = "until_done"
    UNTIL_ERROR = "until_error"


SubModel: TypeAlias = Annotated[
    str | None, typer.Option("--sub-model", help="For sub-calls.", show_default="--model")
]
MaxDepth: TypeAlias = Annotated[
    int, typer.Option("--max-depth", min=1, help="Levels of runs; 1: no runs below the root.")
]
MaxIterations: TypeAlias = Annotated[
    int, typer.Option("--max-iterations", min=1, help="Turns that a run may take.")
]
BlocksOption: TypeAlias = Annotated[
    Blocks, typer.Option("--blocks", help="Which of a reply's code blocks are run.")
]


def limits_of_runs(memory: str, timeout: float) -> Limits:
    """The limits of sessions in which runs work; calls of theirs may take as long as runs may.

    Raises:
        TypeError, ValueError: naming the field.
    """
    from repl_env.rlm.runner import HOST_TIMEOUT
    from repl_sandbox import Limits

    return Limits(memory=memory, timeout=timeout, host_timeout=HOST_TIMEOUT)

"""`repl-env completion SHELL`: a script that completes commands and options in a shell."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

_PROGRAM = "repl-env"
# The variable by which a script asks the program for completions.
VARIABLE = "_REPL_ENV_COMPLETE"


class CompletionShell(StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[CompletionShell, typer.Argument(help="The shell that is to load the script.")],
) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    bash: source <(repl-env completion bash)
    zsh:  source <(repl-env completion zsh)
    fish: repl-env completion fish | source
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name=_PROGRAM, complete_var=VARIABLE, shell=shell.value)
    typer.echo(script)


def prepare() -> None:
    """Load the formats of the shells if a script asks for completions."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()

"""The options of `repl-env run` for the input of the run: contexts and the schema of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .context_files import STDIN, ContextFiles, contexts_from
from .help_groups import INPUT


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
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--schema") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint="--schema") from error

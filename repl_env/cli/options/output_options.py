"""`--json` of commands: JSON instead of text or tables."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from .help_groups import OUTPUT

# Of commands whose options are in no groups.
AsJSON: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
# Of commands with groups of options.
JSONOutput: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)
]

"""The limits of a session, one option for each field of `repl_sandbox.Limits`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .help_groups import LIMITS
from .session_options import opening

if TYPE_CHECKING:
    from repl_sandbox import Limits

# The options of commands whose sessions call no functions of the host lack `host_timeout`.
OPTIONS = {
    "memory": "--memory",
    "timeout": "--timeout",
    "processes": "--processes",
    "open_files": "--open-files",
    "file_size": "--file-size",
    "workspace": "--workspace",
    "output": "--output",
    "cpu_seconds": "--cpu-seconds",
    "grace": "--interrupt-grace",
    "host_timeout": "--host-timeout",
}
MEMORY_HELP = "Memory limit of a session, such as 512MiB or 2GB."
TIMEOUT_HELP = "Seconds that a cell may execute."
PROCESSES_HELP = "Maximum number of processes of a session."
OPEN_FILES_HELP = "Maximum number of open files of each process of a session."
FILE_SIZE_HELP = "Size limit of each file that a session writes."
WORKSPACE_HELP = "Size limit of all files in the working directory of a session."
OUTPUT_HELP = "Size limit of the output that is kept of a session."
CPU_HELP = "Maximum CPU time of a session in seconds, over all cells."
GRACE_HELP = "Seconds that an interrupted cell has to end."

Memory: TypeAlias = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help=MEMORY_HELP, rich_help_panel=LIMITS)
]
CellTimeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help=TIMEOUT_HELP, rich_help_panel=LIMITS)
]
Processes: TypeAlias = Annotated[
    int, typer.Option("--processes", help=PROCESSES_HELP, rich_help_panel=LIMITS)
]
OpenFiles: TypeAlias = Annotated[
    int, typer.Option("--open-files", help=OPEN_FILES_HELP, rich_help_panel=LIMITS)
]
FileSize: TypeAlias = Annotated[
    str, typer.Option("--file-size", metavar="SIZE", help=FILE_SIZE_HELP, rich_help_panel=LIMITS)
]
Workspace: TypeAlias = Annotated[
    str, typer.Option("--workspace", metavar="SIZE", help=WORKSPACE_HELP, rich_help_panel=LIMITS)
]
Output: TypeAlias = Annotated[
    str, typer.Option("--output", metavar="SIZE", help=OUTPUT_HELP, rich_help_panel=LIMITS)
]
CPUSeconds: TypeAlias = Annotated[
    float | None,
    typer.Option("--cpu-seconds", metavar="SECONDS", help=CPU_HELP, rich_help_panel=LIMITS),
]
InterruptGrace: TypeAlias = Annotated[
    float,
    typer.Option("--interrupt-grace", metavar="SECONDS", help=GRACE_HELP, rich_help_panel=LIMITS),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The limits of each session."""

    timeout: CellTimeout = 30.0
    memory: Memory = "1GiB"
    processes: Processes = 64
    open_files: OpenFiles = 256
    file_size: FileSize = "256MiB"
    workspace: Workspace = "256MiB"
    output: Output = "64MiB"
    cpu_seconds: CPUSeconds = None
    interrupt_grace: InterruptGrace = 0.5

    def limits(self, **more: Any) -> Limits:
        """Return the limits, with `more` fields.

        Raises:
            typer.BadParameter: naming the field.
        """
        from repl_sandbox import Limits

        names = {"interrupt_grace": "grace"}
        values = {
            names.get(each.name, each.name): getattr(self, each.name) for each in fields(self)
        }
        with opening():
            return Limits(**values, **more)

"""Options of `repl-env serve`: limits of a session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from repl_env.cli.options import limit_options as limits
from repl_env.cli.options.session_options import LanguageName

from .serve_parameters import option, seconds, size

_LIMITS = "Limits of a session"


class RecoveryMode(StrEnum):
    """The state in which a session continues after its process died."""

    SNAPSHOT = "snapshot"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class ServerLimitOptions:
    """The limits and the recovery of each session."""

    recovery: Annotated[
        RecoveryMode,
        option("--recovery", _LIMITS, "State in which a session continues after its process died."),
    ] = RecoveryMode.SNAPSHOT
    undo: Annotated[
        int | None,
        option(
            "--undo",
            _LIMITS,
            "Number of cells that a client can undo; each takes one more snapshot of a session."
            " Default: 1 with the playground, else 0.",
            min=0,
            max=128,
        ),
    ] = None
    memory: Annotated[str, size("--memory", _LIMITS, limits.MEMORY_HELP)] = "1GiB"
    processes: Annotated[int, option("--processes", _LIMITS, limits.PROCESSES_HELP, min=1)] = 64
    open_files: Annotated[int, option("--open-files", _LIMITS, limits.OPEN_FILES_HELP, min=16)] = (
        256
    )
    file_size: Annotated[str, size("--file-size", _LIMITS, limits.FILE_SIZE_HELP)] = "256MiB"
    workspace: Annotated[str, size("--workspace", _LIMITS, limits.WORKSPACE_HELP)] = "256MiB"
    output: Annotated[
        str, size("--output", _LIMITS, "Size limit of the output that a step keeps.")
    ] = "1MiB"
    cpu_seconds: Annotated[float | None, seconds("--cpu-seconds", _LIMITS, limits.CPU_HELP)] = None
    timeout: Annotated[float, seconds("--timeout", _LIMITS, limits.TIMEOUT_HELP)] = 30.0
    interrupt_grace: Annotated[float, seconds("--interrupt-grace", _LIMITS, limits.GRACE_HELP)] = (
        0.5
    )
    host_timeout: Annotated[
        float,
        seconds(
            "--host-timeout", _LIMITS, "Seconds that all sub-calls of one cell may take together."
        ),
    ] = 300.0
    max_timeout: Annotated[
        float | None,
        seconds(
            "--max-timeout",
            _LIMITS,
            "Largest time-out that a step may request; default: 3600, or --timeout if larger.",
        ),
    ] = None
    language: Annotated[
        LanguageName,
        option(
            "--language", _LIMITS, "Subset of Python that cells may use; not a security boundary."
        ),
    ] = LanguageName.FULL

"""The parameters of `repl-env serve`: names, help and environment variables of its options.

Each option has an environment variable too, such as `REPL_ENV_MAX_SESSIONS` for `--max-sessions`,
for containers and for `repl_server.asgi`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from repl_env.cli.options import limit_options as limits
from repl_env.cli.options.session_options import Isolation, LanguageName, Require

from ..auth.api_keys import VARIABLE

PREFIX = "REPL_ENV_"

# Headings of `repl-env serve --help`.
_ACCESS = "Network and access"
_ISOLATION = "Isolation"
_LIMITS = "Limits of a session"
_CAPACITY = "Capacity and time-outs"
_MODELS = "Models for sub-calls"
_STORAGE = "Quotas, sizes and logging"


class RecoveryMode(StrEnum):
    """The state in which a session continues after its process died."""

    SNAPSHOT = "snapshot"
    RESTART = "restart"


def option(name: str, panel: str, help: str, **more: Any) -> Any:
    """An option that has an environment variable too, under the heading `panel`."""
    # Of two names, such as --yes/--no, the first one gives the variable, which then may be 0.
    variable = PREFIX + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, rich_help_panel=panel, **{"envvar": variable, **more})


def seconds(name: str, panel: str, help: str) -> Any:
    """An option in seconds."""
    return option(name, panel, help, min=0, metavar="SECONDS")


Texts: TypeAlias = list[str] | None

HostOption: TypeAlias = Annotated[str, option("--host", _ACCESS, "Address to listen on.")]
PortOption: TypeAlias = Annotated[
    int, option("--port", _ACCESS, "Port to listen on; 0 picks a free one.", min=0, max=65535)
]
KeysOption: TypeAlias = Annotated[
    Path | None,
    option(
        "--api-keys",
        _ACCESS,
        f"File of API keys, made by `repl-env keys`; {VARIABLE} may hold lines of such a file.",
        metavar="FILE",
        envvar=f"{VARIABLE}_FILE",
    ),
]
MetricsKeyOption: TypeAlias = Annotated[
    str | None,
    option(
        "--metrics-key", _ACCESS, "Name of the key that sees all keys in /metrics.", metavar="NAME"
    ),
]
NoAuthOption: TypeAlias = Annotated[
    bool, option("--no-auth", _ACCESS, "Serve every client that can reach the port without a key.")
]
WebOption: TypeAlias = Annotated[
    bool | None,
    option(
        "--web/--no-web", _ACCESS, "Serve the playground at /; default: only if --host is loopback."
    ),
]
OriginsOption: TypeAlias = Annotated[
    Texts,
    option("--origin", _ACCESS, "Origin of web pages that may send requests; may be repeated."),
]
FrameAncestorsOption: TypeAlias = Annotated[
    Texts,
    option("--frame-ancestor", _ACCESS, "Site that may show pages in a frame; may be repeated."),
]
TrustedProxiesOption: TypeAlias = Annotated[
    Texts,
    option(
        "--trusted-proxy",
        _ACCESS,
        "Address or network of a proxy whose X-Forwarded-For is trusted; may be repeated.",
    ),
]

IsolationOption: TypeAlias = Annotated[
    Isolation, option("--isolation", _ISOLATION, "Isolation tier of sessions.", metavar="TIER")
]
RequireOption: TypeAlias = Annotated[
    Require,
    option("--require", _ISOLATION, "Weakest isolation tier to accept.", metavar="TIER"),
]
ImageOption: TypeAlias = Annotated[
    str | None,
    option("--image", _ISOLATION, "Container image for the tier container.", metavar="IMAGE"),
]
RuntimeOption: TypeAlias = Annotated[
    str | None,
    option("--runtime", _ISOLATION, "Container runtime, as the daemon names it.", metavar="NAME"),
]
RecoveryOption: TypeAlias = Annotated[
    RecoveryMode,
    option("--recovery", _LIMITS, "State in which a session continues after its process died."),
]
PreloadOption: TypeAlias = Annotated[
    Texts,
    option(
        "--preload",
        _ISOLATION,
        "Modules to import before sessions start; may be repeated.",
        metavar="MODULE",
    ),
]
UndoOption: TypeAlias = Annotated[
    int | None,
    option(
        "--undo",
        _LIMITS,
        "Number of cells that a client can undo; each takes one more snapshot of a session."
        " Default: 1 with the playground, else 0.",
        min=0,
        max=128,
    ),
]
PythonOption: TypeAlias = Annotated[
    str | None,
    option(
        "--python",
        _ISOLATION,
        "Interpreter of the sessions, CPython 3.11 or later; by default that of the server.",
        metavar="FILE",
    ),
]
MountsOption: TypeAlias = Annotated[
    Texts,
    option(
        "--mount",
        _ISOLATION,
        "A file or directory that sessions may read, at the same path or at INSIDE; may be "
        "repeated.",
        metavar="[INSIDE=]PATH",
    ),
]


def size(name: str, help: str) -> Any:
    """A limit of a session in bytes."""
    return option(name, _LIMITS, help, metavar="SIZE")


MemoryOption: TypeAlias = Annotated[str, size("--memory", limits.MEMORY_HELP)]
ProcessesOption: TypeAlias = Annotated[
    int, option("--processes", _LIMITS, limits.PROCESSES_HELP, min=1)
]
OpenFilesOption: TypeAlias = Annotated[
    int, option("--open-files", _LIMITS, limits.OPEN_FILES_HELP, min=16)
]
FileSizeOption: TypeAlias = Annotated[str, size("--file-size", limits.FILE_SIZE_HELP)]
WorkspaceOption: TypeAlias = Annotated[str, size("--workspace", limits.WORKSPACE_HELP)]
OutputOption: TypeAlias = Annotated[
    str, size("--output", "Size limit of the output that a step keeps.")
]
CPUSecondsOption: TypeAlias = Annotated[
    float | None, seconds("--cpu-seconds", _LIMITS, limits.CPU_HELP)
]
TimeoutOption: TypeAlias = Annotated[float, seconds("--timeout", _LIMITS, limits.TIMEOUT_HELP)]
InterruptGraceOption: TypeAlias = Annotated[
    float, seconds("--interrupt-grace", _LIMITS, limits.GRACE_HELP)
]
HostTimeoutOption: TypeAlias = Annotated[
    float,
    seconds("--host-timeout", _LIMITS, "Seconds that all sub-calls of one cell may take together."),
]
MaxTimeoutOption: TypeAlias = Annotated[
    float | None,
    seconds(
        "--max-timeout",
        _LIMITS,
        "Largest time-out that a step may request; default: 3600, or --timeout if larger.",
    ),
]
LanguageOption: TypeAlias = Annotated[
    LanguageName,
    option("--language", _LIMITS, "Subset of Python that cells may use; not a security boundary."),
]

PoolOption: TypeAlias = Annotated[
    int | None, option("--pool", _CAPACITY, "Number of sessions to keep ready.", min=0)
]
FairShareOption: TypeAlias = Annotated[
    bool,
    option(
        "--fair-share/--no-fair-share",
        _CAPACITY,
        "Give sessions that use much CPU time a lower priority than all others.",
    ),
]
MaxSessionsOption: TypeAlias = Annotated[
    int,
    option(
        "--max-sessions",
        _CAPACITY,
        "Maximum number of open sessions.",
        min=1,
        envvar=[f"{PREFIX}MAX_SESSIONS", "MAX_CONCURRENT_ENVS"],  # the second is OpenEnv's
    ),
]
MaxWaitingOption: TypeAlias = Annotated[
    int,
    option("--max-waiting", _CAPACITY, "Maximum number of clients waiting for a session.", min=0),
]
WaitOption: TypeAlias = Annotated[
    float, seconds("--wait", _CAPACITY, "Seconds a client may wait for a free session.")
]
IdleOption: TypeAlias = Annotated[
    float, seconds("--idle", _CAPACITY, "Seconds after which an unused session ends.")
]
GraceOption: TypeAlias = Annotated[
    float, seconds("--grace", _CAPACITY, "Seconds a session is kept after its socket closed.")
]
DrainOption: TypeAlias = Annotated[
    float,
    seconds("--drain", _CAPACITY, "Seconds running steps may take when the server stops."),
]
ConnectionsOption: TypeAlias = Annotated[
    int, option("--connections", _CAPACITY, "Maximum number of open connections.", min=1)
]

EndpointsOption: TypeAlias = Annotated[
    Texts,
    option(
        "--llm-url",
        _MODELS,
        "Model endpoint that a reset may name, or URL/* for all below it; may be repeated.",
        metavar="URL",
    ),
]
ModelOption: TypeAlias = Annotated[
    str | None, option("--model", _MODELS, "Model for resets that name none.")
]
BaseURLOption: TypeAlias = Annotated[
    str | None, option("--base-url", _MODELS, "Endpoint of the model given by --model.")
]
KeyVariableOption: TypeAlias = Annotated[
    str | None,
    option(
        "--api-key-env",
        _MODELS,
        "Environment variable with the API key of the model given by --model.",
        metavar="NAME",
    ),
]
BudgetCallsOption: TypeAlias = Annotated[
    int, option("--budget-calls", _MODELS, "Maximum number of sub-calls of a session.")
]
BudgetTokensOption: TypeAlias = Annotated[
    str | None,
    option(
        "--budget-tokens",
        _MODELS,
        "Maximum number of tokens of a session's sub-calls.",
        metavar="IN[:OUT]",
    ),
]
ConcurrentCallsOption: TypeAlias = Annotated[
    int,
    option(
        "--max-concurrent-subcalls",
        _MODELS,
        "Maximum number of concurrent sub-calls of a session.",
        min=1,
    ),
]

QuotaOption: TypeAlias = Annotated[
    Texts,
    option(
        "--quota",
        _STORAGE,
        "Limit of each tenant, such as sessions=8 or steps_per_second=50; may be repeated.",
        metavar="NAME=VALUE",
    ),
]
MaxMessageOption: TypeAlias = Annotated[
    str | None,
    option(
        "--max-message",
        _STORAGE,
        "Size limit of a WebSocket message or HTTP body; default: 128MiB, or 32MiB with --no-auth"
        " off loopback.",
    ),
]
MaxContextOption: TypeAlias = Annotated[
    str | None,
    option(
        "--max-context",
        _STORAGE,
        "Size limit of an uploaded context; default: 1GiB, or --max-uploads if smaller.",
    ),
]
MaxUploadsOption: TypeAlias = Annotated[
    str, option("--max-uploads", _STORAGE, "Memory limit of all uploaded contexts.")
]
LogContentsOption: TypeAlias = Annotated[
    bool, option("--log-contents", _STORAGE, "Write code and output of steps to the log.")
]

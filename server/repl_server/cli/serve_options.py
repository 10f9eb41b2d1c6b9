"""The options of `repl-env serve`, and the `Settings` made of them.

Each option has an environment variable too, such as `REPL_ENV_MAX_SESSIONS` for `--max-sessions`,
for containers and for `repl_server.asgi`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.options.budget_options import budget_from
from repl_env.cli.options.model_options import ModelOptions, llm_from
from repl_env.cli.options.session_options import (
    Isolation,
    LanguageName,
    Require,
    modules_of,
    policy_of,
)

from ..auth.api_keys import VARIABLE, lines_of

if TYPE_CHECKING:
    from repl_env.llm.model_spec import LLM

    from ..settings import Settings

PREFIX = "REPL_ENV_"
# Bytes. A reset with a task and a step with some code fit, and larger data can be uploaded; a
# server with a lower limit would answer TOO_LARGE to every client.
LEAST_MESSAGE = 4 << 10

# Headings of `repl-env serve --help`.
_ACCESS = "Network and access"
_SESSIONS = "Isolation and limits of one session"
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
    Isolation, option("--isolation", _SESSIONS, "Isolation tier of sessions.")
]
RequireOption: TypeAlias = Annotated[
    Require, option("--require", _SESSIONS, "Weakest isolation tier to accept.")
]
ImageOption: TypeAlias = Annotated[
    str | None,
    option("--image", _SESSIONS, "Container image for the tier container.", metavar="IMAGE"),
]
RuntimeOption: TypeAlias = Annotated[
    str | None,
    option("--runtime", _SESSIONS, "Container runtime, as the daemon names it.", metavar="NAME"),
]
RecoveryOption: TypeAlias = Annotated[
    RecoveryMode,
    option("--recovery", _SESSIONS, "State in which a session continues after its process died."),
]
UndoOption: TypeAlias = Annotated[
    int | None,
    option(
        "--undo",
        _SESSIONS,
        "Number of cells that a client can undo; each takes one more snapshot of a session."
        " Default: 1 with the playground, else 0.",
        min=0,
        max=128,
    ),
]
PreloadOption: TypeAlias = Annotated[
    Texts,
    option(
        "--preload",
        _SESSIONS,
        "Modules to import before sessions start; may be repeated.",
        metavar="MODULE",
    ),
]
MemoryOption: TypeAlias = Annotated[
    str, option("--memory", _SESSIONS, "Memory limit of a session, such as 512MiB or 2GB.")
]
OutputOption: TypeAlias = Annotated[
    str, option("--output", _SESSIONS, "Size limit of the output that a step keeps.")
]
TimeoutOption: TypeAlias = Annotated[
    float, seconds("--timeout", _SESSIONS, "Seconds a cell may execute.")
]
MaxTimeoutOption: TypeAlias = Annotated[
    float | None,
    seconds(
        "--max-timeout",
        _SESSIONS,
        "Largest time-out that a step may request; default: 3600, or --timeout if larger.",
    ),
]
LanguageOption: TypeAlias = Annotated[
    LanguageName,
    option(
        "--language", _SESSIONS, "Subset of Python that cells may use; not a security boundary."
    ),
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


def settings(
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    api_keys: KeysOption = None,
    metrics_key: MetricsKeyOption = None,
    no_auth: NoAuthOption = False,
    web: WebOption = None,
    origin: OriginsOption = None,
    frame_ancestor: FrameAncestorsOption = None,
    trusted_proxy: TrustedProxiesOption = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = Require.JAILED,
    image: ImageOption = None,
    runtime: RuntimeOption = None,
    recovery: RecoveryOption = RecoveryMode.SNAPSHOT,
    undo: UndoOption = None,
    preload: PreloadOption = None,
    memory: MemoryOption = "1GiB",
    output: OutputOption = "1MiB",
    timeout: TimeoutOption = 30.0,
    max_timeout: MaxTimeoutOption = None,
    language: LanguageOption = LanguageName.FULL,
    pool: PoolOption = None,
    fair_share: FairShareOption = True,
    max_sessions: MaxSessionsOption = 64,
    max_waiting: MaxWaitingOption = 64,
    wait: WaitOption = 10.0,
    idle: IdleOption = 900.0,
    grace: GraceOption = 60.0,
    drain: DrainOption = 30.0,
    llm_url: EndpointsOption = None,
    model: ModelOption = None,
    base_url: BaseURLOption = None,
    api_key_env: KeyVariableOption = None,
    budget_calls: BudgetCallsOption = 200,
    budget_tokens: BudgetTokensOption = None,
    max_concurrent_subcalls: ConcurrentCallsOption = 8,
    quota: QuotaOption = None,
    max_message: MaxMessageOption = None,
    max_context: MaxContextOption = None,
    max_uploads: MaxUploadsOption = "4GiB",
    connections: ConnectionsOption = 2048,
    log_contents: LogContentsOption = False,
) -> Any:
    """The `Settings` made of the options.

    Raises:
        typer.BadParameter: naming the invalid option.
    """
    from repl_sandbox import Limits
    from repl_sandbox.session_limits import parse_size

    from ..quotas.tenant_quota import parse_quota
    from ..settings import Settings
    from ..tenants.client_address import is_loopback
    from .openenv_variables import episodes_of_variables

    own = _own_model(model, base_url, api_key_env)
    budget = budget_from(budget_calls, budget_tokens, None, None)
    try:
        uploads = parse_size(max_uploads, "--max-uploads")
        return Settings(
            host=host,
            port=port,
            api_keys=api_keys,
            hashed_keys=tuple(lines_of(os.environ.get(VARIABLE, ""))),
            metrics_key=metrics_key,
            no_auth=no_auth,
            web=web,
            origins=tuple(origin or ()),
            frame_ancestors=tuple(frame_ancestor or ()),
            trusted_proxies=tuple(trusted_proxy or ()),
            isolation=isolation.value,
            require=require.value,
            image=image,
            runtime=runtime,
            recovery=recovery.value,
            history=undo,
            preload=modules_of(preload),
            limits=Limits(memory=memory, output=output, timeout=timeout),
            max_timeout_s=max_timeout,
            policy=policy_of(language),
            pool=pool,
            fair_share=fair_share,
            max_sessions=max_sessions,
            max_waiting=max_waiting,
            wait_s=wait,
            idle_s=idle,
            grace_s=grace,
            drain_s=drain,
            llm_urls=tuple(llm_url or ()),
            llm=own,
            budget=budget,
            quota=parse_quota(quota or (), public=no_auth and not is_loopback(host)),
            message_bytes=_message_bytes(max_message),
            context_bytes=_context_bytes(max_context, uploads),
            uploads_bytes=uploads,
            connections=connections,
            episodes=replace(
                episodes_of_variables(), max_concurrent_subcalls=max_concurrent_subcalls
            ),
            log_contents=log_contents,
        )
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _own_model(model: str | None, base_url: str | None, api_key_env: str | None) -> LLM | None:
    """The operator's model for sub-calls, or None."""
    if model is not None:
        return llm_from(ModelOptions(model, base_url, api_key_env), os.environ)
    if base_url or api_key_env:
        raise typer.BadParameter("--base-url and --api-key-env need --model")
    return None


def _message_bytes(given: str | None) -> int | None:
    """The size limit of a message, None for the default; raises ValueError."""
    from repl_sandbox.session_limits import parse_size

    size = None if given is None else parse_size(given, "--max-message")
    if size is not None and size < LEAST_MESSAGE:
        message = f"at least {LEAST_MESSAGE >> 10}KiB, for resets and steps"
        raise ValueError(f"--max-message must be {message}, not {given}")
    return size


def _context_bytes(given: str | None, uploads: int) -> int:
    """The size limit of an upload, given the limit of all uploads; raises ValueError."""
    from repl_sandbox.session_limits import parse_size

    from ..settings import CONTEXT

    if given is None:
        return min(CONTEXT, uploads)
    size = parse_size(given, "--max-context")
    if size > uploads:
        raise ValueError(f"--max-context {given} is more than --max-uploads allows for all uploads")
    return size


def of_variables(host: str) -> Settings:
    """The settings of the environment variables; `host`: default address."""
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    given: Settings = typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return given

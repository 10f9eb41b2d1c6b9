"""The options of `repl-env serve`, and the settings that they ask for.

Each can be given by a variable of the environment as well, which is what containers and
`repl_server.asgi` use: `REPL_ENV_MAX_SESSIONS` for `--max-sessions`.
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
# Bytes. A reset with a task and a step with some code pass, and the rest can be uploaded; a server
# that takes less answers TOO_LARGE to everybody.
LEAST_MESSAGE = 4 << 10


class RecoveryMode(StrEnum):
    """What becomes of a session whose process dies."""

    SNAPSHOT = "snapshot"
    RESTART = "restart"


def option(name: str, help: str, **more: Any) -> Any:
    """An option that a variable of the environment can give too."""
    # Of two names, as --yes/--no, the first, which then may be 0.
    variable = PREFIX + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, **{"envvar": variable, **more})


def seconds(name: str, help: str) -> Any:
    """An option in seconds."""
    return option(name, help, min=0, metavar="SECONDS")


Texts: TypeAlias = list[str] | None

# ── who may ask, and where ────────────────────────────────────────────────────────────────────────

Host: TypeAlias = Annotated[str, option("--host", "The address to listen on.")]
Port: TypeAlias = Annotated[int, option("--port", "0 takes a free one.", min=0, max=65535)]
Keys: TypeAlias = Annotated[
    Path | None,
    option(
        "--api-keys",
        f"Keys, by `repl-env keys`; {VARIABLE} may have lines of such a file.",
        metavar="FILE",
        envvar=f"{VARIABLE}_FILE",
    ),
]
MetricsKey: TypeAlias = Annotated[
    str | None, option("--metrics-key", "The key that /metrics tells of all keys.", metavar="NAME")
]
NoAuth: TypeAlias = Annotated[
    bool, option("--no-auth", "Ask nobody for a key who can reach the port.")
]
Origins: TypeAlias = Annotated[Texts, option("--origin", "Of web pages that may ask; repeat.")]
FrameAncestors: TypeAlias = Annotated[
    Texts, option("--frame-ancestor", "Sites that may show its pages in a frame; repeat.")
]
TrustedProxies: TypeAlias = Annotated[
    Texts, option("--trusted-proxy", "Whose X-Forwarded-For is believed; repeat.")
]
Connections: TypeAlias = Annotated[int, option("--connections", "Open at once.", min=1)]

# ── one session ───────────────────────────────────────────────────────────────────────────────────

IsolationOption: TypeAlias = Annotated[
    Isolation, option("--isolation", "The tier that holds the code.")
]
RequireOption: TypeAlias = Annotated[Require, option("--require", "The weakest to accept.")]
ImageOption: TypeAlias = Annotated[
    str | None, option("--image", "Of the container, in tier container.", metavar="IMAGE")
]
RuntimeOption: TypeAlias = Annotated[
    str | None, option("--runtime", "Of the container, as its daemon names it.", metavar="NAME")
]
RecoveryOption: TypeAlias = Annotated[
    RecoveryMode, option("--recovery", "Where a session goes on whose process dies.")
]
Preload: TypeAlias = Annotated[
    Texts, option("--preload", "Modules to import beforehand.", metavar="MODULE")
]
Memory: TypeAlias = Annotated[str, option("--memory", "Of a session, as 512MiB or 2GB.")]
Output: TypeAlias = Annotated[str, option("--output", "What is kept of a step's output.")]
CellTimeout: TypeAlias = Annotated[float, seconds("--timeout", "How long a cell may execute.")]
MaxTimeout: TypeAlias = Annotated[
    float | None,
    seconds(
        "--max-timeout", "The longest that a step may ask for; 3600, or --timeout if that is more."
    ),
]
Language: TypeAlias = Annotated[
    LanguageName, option("--language", "How much of Python cells may use; no wall.")
]

# ── all sessions ──────────────────────────────────────────────────────────────────────────────────

Ready: TypeAlias = Annotated[int | None, option("--pool", "Sessions made ahead of time.", min=0)]
FairShare: TypeAlias = Annotated[
    bool,
    option("--fair-share/--no-fair-share", "Sessions that burn CPU time give way to all others."),
]
MaxSessions: TypeAlias = Annotated[
    int,
    option(
        "--max-sessions",
        "Open at once.",
        min=1,
        envvar=[f"{PREFIX}MAX_SESSIONS", "MAX_CONCURRENT_ENVS"],  # the second is OpenEnv's
    ),
]
MaxWaiting: TypeAlias = Annotated[int, option("--max-waiting", "Who may wait for one.", min=0)]
Wait: TypeAlias = Annotated[float, seconds("--wait", "How long they may.")]
Idle: TypeAlias = Annotated[float, seconds("--idle", "Sessions that nobody uses end then.")]
Grace: TypeAlias = Annotated[float, seconds("--grace", "How long sessions outlive a socket.")]
Drain: TypeAlias = Annotated[float, seconds("--drain", "For what runs when the server stops.")]

# ── sub-calls ─────────────────────────────────────────────────────────────────────────────────────

Endpoints: TypeAlias = Annotated[
    Texts,
    option(
        "--llm-url",
        "An endpoint that a reset may name for sub-calls, or URL/* for all below it; repeat.",
        metavar="URL",
    ),
]
ModelName: TypeAlias = Annotated[
    str | None, option("--model", "Answers the sub-calls of resets that name nobody.")
]
BaseURL: TypeAlias = Annotated[str | None, option("--base-url", "Where that model is.")]
KeyVariable: TypeAlias = Annotated[
    str | None, option("--api-key-env", "The variable that holds its key.", metavar="NAME")
]
Calls: TypeAlias = Annotated[int, option("--budget-calls", "Sub-calls of a session.")]
ConcurrentCalls: TypeAlias = Annotated[
    int,
    option("--max-concurrent-subcalls", "Sub-calls of a session under way at once.", min=1),
]
Tokens: TypeAlias = Annotated[
    str | None, option("--budget-tokens", "Of its sub-calls.", metavar="IN[:OUT]")
]

# ── what is kept, and of whom ─────────────────────────────────────────────────────────────────────

QuotaLines: TypeAlias = Annotated[
    Texts,
    option(
        "--quota",
        "What each tenant may use, as sessions=8 or steps_per_second=50; repeat.",
        metavar="NAME=VALUE",
    ),
]
MaxMessage: TypeAlias = Annotated[
    str | None,
    option(
        "--max-message",
        "Of one WebSocket message or HTTP body; 128MiB, 32MiB with --no-auth off loopback.",
    ),
]
MaxContext: TypeAlias = Annotated[
    str | None,
    option("--max-context", "Of one uploaded context; 1GiB, or --max-uploads if that is less."),
]
MaxUploads: TypeAlias = Annotated[str, option("--max-uploads", "Of all that are kept.")]
LogContents: TypeAlias = Annotated[
    bool, option("--log-contents", "Write code and output into the log.")
]


def settings(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_keys: Keys = None,
    metrics_key: MetricsKey = None,
    no_auth: NoAuth = False,
    origin: Origins = None,
    frame_ancestor: FrameAncestors = None,
    trusted_proxy: TrustedProxies = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = Require.JAILED,
    image: ImageOption = None,
    runtime: RuntimeOption = None,
    recovery: RecoveryOption = RecoveryMode.SNAPSHOT,
    preload: Preload = None,
    memory: Memory = "1GiB",
    output: Output = "1MiB",
    timeout: CellTimeout = 30.0,
    max_timeout: MaxTimeout = None,
    language: Language = LanguageName.FULL,
    pool: Ready = None,
    fair_share: FairShare = True,
    max_sessions: MaxSessions = 64,
    max_waiting: MaxWaiting = 64,
    wait: Wait = 10.0,
    idle: Idle = 900.0,
    grace: Grace = 60.0,
    drain: Drain = 30.0,
    llm_url: Endpoints = None,
    model: ModelName = None,
    base_url: BaseURL = None,
    api_key_env: KeyVariable = None,
    budget_calls: Calls = 200,
    budget_tokens: Tokens = None,
    max_concurrent_subcalls: ConcurrentCalls = 8,
    quota: QuotaLines = None,
    max_message: MaxMessage = None,
    max_context: MaxContext = None,
    max_uploads: MaxUploads = "4GiB",
    connections: Connections = 2048,
    log_contents: LogContents = False,
) -> Any:
    """The `Settings` that the options ask for.

    Raises:
        typer.BadParameter: naming the one that is wrong.
    """
    from repl_sandbox import Limits
    from repl_sandbox.types import parse_size

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
            origins=tuple(origin or ()),
            frame_ancestors=tuple(frame_ancestor or ()),
            trusted_proxies=tuple(trusted_proxy or ()),
            isolation=isolation.value,
            require=require.value,
            image=image,
            runtime=runtime,
            recovery=recovery.value,
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
    """The server's own model for sub-calls, None for none."""
    if model is not None:
        return llm_from(ModelOptions(model, base_url, api_key_env), os.environ)
    if base_url or api_key_env:
        raise typer.BadParameter("--base-url and --api-key-env are of a model: name it by --model")
    return None


def _message_bytes(given: str | None) -> int | None:
    """The size of one message, None for the settings' own; raises ValueError."""
    from repl_sandbox.types import parse_size

    size = None if given is None else parse_size(given, "--max-message")
    if size is not None and size < LEAST_MESSAGE:
        message = f"at least {LEAST_MESSAGE >> 10}KiB: resets and steps are messages"
        raise ValueError(f"--max-message must be {message}, and {given} has no room for them")
    return size


def _context_bytes(given: str | None, uploads: int) -> int:
    """The size of one upload, where all that are kept have `uploads` bytes; raises ValueError."""
    from repl_sandbox.types import parse_size

    from ..settings import CONTEXT

    if given is None:
        return min(CONTEXT, uploads)
    size = parse_size(given, "--max-context")
    if size > uploads:
        raise ValueError(f"--max-context {given} is more than --max-uploads has for all of them")
    return size


def of_variables(host: str) -> Settings:
    """The settings that the variables of the environment ask for; `host` if they name none."""
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    given: Settings = typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return given

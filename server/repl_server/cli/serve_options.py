"""The `Settings` made of the options of `repl-env serve`, or of their environment variables."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from repl_env.cli.options.budget_options import budget_from
from repl_env.cli.options.model_options import ModelOptions, llm_from
from repl_env.cli.options.session_options import (
    Isolation,
    LanguageName,
    Require,
    modules_of,
    mounts_of,
    policy_of,
)

from ..auth.api_keys import VARIABLE, lines_of
from .option_errors import option_error
from .serve_parameters import (
    PREFIX,
    BaseURLOption,
    BudgetCallsOption,
    BudgetTokensOption,
    ConcurrentCallsOption,
    ConnectionsOption,
    CPUSecondsOption,
    DrainOption,
    EndpointsOption,
    FairShareOption,
    FileSizeOption,
    FrameAncestorsOption,
    GraceOption,
    HostOption,
    HostTimeoutOption,
    IdleOption,
    ImageOption,
    InterruptGraceOption,
    IsolationOption,
    KeysOption,
    KeyVariableOption,
    LanguageOption,
    LogContentsOption,
    MaxContextOption,
    MaxMessageOption,
    MaxSessionsOption,
    MaxTimeoutOption,
    MaxUploadsOption,
    MaxWaitingOption,
    MemoryOption,
    MetricsKeyOption,
    ModelOption,
    MountsOption,
    NoAuthOption,
    OpenFilesOption,
    OriginsOption,
    OutputOption,
    PoolOption,
    PortOption,
    PreloadOption,
    ProcessesOption,
    PythonOption,
    QuotaOption,
    RecoveryMode,
    RecoveryOption,
    RequireOption,
    RuntimeOption,
    TimeoutOption,
    TrustedProxiesOption,
    UndoOption,
    WaitOption,
    WebOption,
    WorkspaceOption,
)

if TYPE_CHECKING:
    from repl_env.llm.model_spec import LLM

    from ..settings import Settings

# Bytes. A reset with a task and a step with some code fit, and larger data can be uploaded; a
# server with a lower limit would answer TOO_LARGE to every client.
LEAST_MESSAGE = 4 << 10


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
    python: PythonOption = None,
    mount: MountsOption = None,
    preload: PreloadOption = None,
    memory: MemoryOption = "1GiB",
    processes: ProcessesOption = 64,
    open_files: OpenFilesOption = 256,
    file_size: FileSizeOption = "256MiB",
    workspace: WorkspaceOption = "256MiB",
    output: OutputOption = "1MiB",
    cpu_seconds: CPUSecondsOption = None,
    timeout: TimeoutOption = 30.0,
    interrupt_grace: InterruptGraceOption = 0.5,
    host_timeout: HostTimeoutOption = 300.0,
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

    options = dict(locals())
    own = _own_model(model, base_url, api_key_env)
    budget = budget_from(budget_calls, budget_tokens, None, None)
    try:
        uploads = parse_size(max_uploads, "uploads_bytes")
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
            python=python,
            mounts=tuple(mounts_of(mount).items()),
            limits=Limits(
                memory=memory,
                timeout=timeout,
                processes=processes,
                open_files=open_files,
                file_size=file_size,
                workspace=workspace,
                output=output,
                cpu_seconds=cpu_seconds,
                grace=interrupt_grace,
                host_timeout=host_timeout,
            ),
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
        raise option_error(error, options) from error


def _own_model(model: str | None, base_url: str | None, api_key_env: str | None) -> LLM | None:
    """The operator's model for sub-calls, or None."""
    if model is not None:
        return llm_from(ModelOptions(model, base_url, api_key_env), os.environ)
    for option, value in (("--base-url", base_url), ("--api-key-env", api_key_env)):
        if value:
            raise typer.BadParameter(f"{value!r} needs --model", param_hint=option)
    return None


def _message_bytes(given: str | None) -> int | None:
    """The size limit of a message, None for the default; raises ValueError."""
    from repl_sandbox.session_limits import parse_size

    size = None if given is None else parse_size(given, "message_bytes")
    if size is not None and size < LEAST_MESSAGE:
        least = f"{LEAST_MESSAGE >> 10}KiB"
        raise ValueError(f"message_bytes must be at least {least}, for resets and steps")
    return size


def _context_bytes(given: str | None, uploads: int) -> int:
    """The size limit of an upload, given the limit of all uploads; raises ValueError."""
    from repl_sandbox.session_limits import parse_size

    from ..settings import CONTEXT

    if given is None:
        return min(CONTEXT, uploads)
    size = parse_size(given, "context_bytes")
    if size > uploads:
        raise ValueError(f"context_bytes must be at most uploads_bytes, which is {uploads:,} bytes")
    return size


def of_variables(host: str) -> Settings:
    """The settings of the environment variables; `host`: default address."""
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    given: Settings = typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return given

"""The options of `repl-env serve`, and the `Settings` made of them or of environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli import options as limits
from repl_env.cli.model_options import (
    ModelOptions,
    SamplingArguments,
    budget_from,
    is_folder,
    llm_from,
    option_of,
)
from repl_env.cli.options import (
    MODEL,
    Isolation,
    LanguageName,
    Require,
    modules_of,
    mounts_of,
    policy_of,
    with_option_groups,
)
from repl_env.env.options import EnvironmentOptions as EnvironmentSettings

from .auth import VARIABLE, lines_of

if TYPE_CHECKING:
    from repl_env.llm.spec import LLM
    from repl_sandbox import Limits

    from .settings import Settings


# Defaults of episodes, from the environment variables of OpenEnv's server.

_TEXTS = {"REPL_CONTEXT": "context", "REPL_TASK_PROMPT": "task_prompt"}
_COUNTS = {
    "REPL_MAX_ITERATIONS": "max_iterations",
    "REPL_MAX_OUTPUT_LENGTH": "max_output_length",
    "REPL_CONTEXT_PREVIEW_LENGTH": "context_preview_length",
    "REPL_RLM_MAX_DEPTH": "rlm_max_depth",
    "REPL_RLM_MAX_ITERATIONS": "rlm_max_iterations",
}


def episodes_of_variables(variables: Mapping[str, str] | None = None) -> EnvironmentSettings:
    """Environment options from `variables`, by default those of the process.

    An empty variable counts as unset.

    Raises:
        ValueError: naming the invalid variable.
    """
    found = os.environ if variables is None else variables
    given: dict[str, Any] = {
        option: found[name] for name, option in _TEXTS.items() if found.get(name)
    }
    for name, option in _COUNTS.items():
        if text := found.get(name):
            given[option] = _count(name, text)
            _check(name, **{option: given[option]})
    return EnvironmentSettings(**given)


def _count(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {text!r}") from None


def _check(name: str, **field: Any) -> None:
    try:
        EnvironmentSettings(**field)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# Errors about the settings of a server as errors about the options that the settings come from.

# Parameters of `repl-env serve` by the fields of `Settings` and `Limits` that have other names.
_PARAMETERS = {
    "context_bytes": "max_context",
    "drain_s": "drain",
    "frame_ancestors": "frame_ancestor",
    "grace": "interrupt_grace",
    "grace_s": "grace",
    "history": "undo",
    "idle_s": "idle",
    "llm": "model",
    "llm_urls": "llm_url",
    "max_timeout_s": "max_timeout",
    "message_bytes": "max_message",
    "mounts": "mount",
    "origins": "origin",
    "trusted_proxies": "trusted_proxy",
    "uploads_bytes": "max_uploads",
    "wait_s": "wait",
}
# The first word of an error, which is the name of a field, and what the field is or must be.
_FIELD = re.compile(r"(?:limits\.)?(\w+)(=|: | must | is )(.*)", re.DOTALL)
# Fields within the text: those that no prose contains.
_MENTIONED = re.compile(r"\blimits\.(\w+)|\b([a-z]+(?:_[a-z]+)+)\b")
_NAMED_ISOLATION = re.compile(r"\bisolation='(\w+)'")


def option_error(error: Exception, options: Mapping[str, Any]) -> typer.BadParameter:
    """The error about the option, with its value, that `error` about a field of settings is.

    `options`: the values by parameter. An error that begins with no field is repeated as it is.
    """
    match = _FIELD.fullmatch(str(error))
    name = "" if match is None else _parameter(match[1])
    if match is None or name not in options:
        return typer.BadParameter(_with_options(str(error), options))
    value, (_, joint, rest) = _shown(options[name]), match.groups()
    rest = _with_options(rest, options)
    if joint.strip() in ("must", "is"):  # the value stands at the end, too
        rest = f"{value}{joint}{re.sub(r', not [^,;:]*$', '', rest)}"
    elif isinstance(options[name], (int, float, str)) and str(options[name]) not in rest:
        rest = f"{value}: {rest}"
    return typer.BadParameter(rest, param_hint=_option(name))


def _parameter(field: str) -> str:
    return _PARAMETERS.get(field, field)


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _shown(value: object) -> str:
    return f"'{value:g}'" if isinstance(value, float) else repr(str(value))


def _with_options(text: str, options: Mapping[str, Any]) -> str:
    """`text` with the options in place of the fields that it mentions."""

    def option(match: re.Match[str]) -> str:
        name = _parameter(match[1] or match[2])
        return _option(name) if name in options else match[0]

    return _NAMED_ISOLATION.sub(r"--isolation \1", _MENTIONED.sub(option, text))


# The form of the options of `repl-env serve`.
#
# Each option has an environment variable too, such as `REPL_ENV_MAX_SESSIONS` for
# `--max-sessions`, for containers and for `repl_server.asgi`.

PREFIX = "REPL_ENV_"

Texts: TypeAlias = list[str] | None


def option(name: str, panel: str, help: str, **more: Any) -> Any:
    """An option that has an environment variable too, under the heading `panel`."""
    # Of two names, such as --yes/--no, the first one gives the variable, which then may be 0.
    variable = PREFIX + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, rich_help_panel=panel, **{"envvar": variable, **more})


def seconds(name: str, panel: str, help: str) -> Any:
    """An option in seconds."""
    return option(name, panel, help, min=0, metavar="SECONDS")


def size(name: str, panel: str, help: str) -> Any:
    """An option in bytes."""
    return option(name, panel, help, metavar="SIZE")


# Options of `repl-env serve`: network, access and isolation.

_ACCESS = "Network and access"
_ISOLATION = "Isolation"


@dataclass(frozen=True, kw_only=True)
class ServerAccessOptions:
    """The address of the server, and its clients."""

    host: Annotated[str, option("--host", _ACCESS, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, option("--port", _ACCESS, "Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8000
    api_keys: Annotated[
        Path | None,
        option(
            "--api-keys",
            _ACCESS,
            f"File of API keys, made by `repl-env keys`; {VARIABLE} may hold lines of such a file.",
            metavar="FILE",
            envvar=f"{VARIABLE}_FILE",
        ),
    ] = None
    metrics_key: Annotated[
        str | None,
        option(
            "--metrics-key",
            _ACCESS,
            "Name of the key that sees all keys in /metrics.",
            metavar="NAME",
        ),
    ] = None
    no_auth: Annotated[
        bool,
        option("--no-auth", _ACCESS, "Serve every client that can reach the port without a key."),
    ] = False
    web: Annotated[
        bool | None,
        option(
            "--web/--no-web",
            _ACCESS,
            "Serve the playground at /; default: only if --host is loopback.",
        ),
    ] = None
    origin: Annotated[
        Texts,
        option("--origin", _ACCESS, "Origin of web pages that may send requests; may be repeated."),
    ] = None
    frame_ancestor: Annotated[
        Texts,
        option(
            "--frame-ancestor", _ACCESS, "Site that may show pages in a frame; may be repeated."
        ),
    ] = None
    trusted_proxy: Annotated[
        Texts,
        option(
            "--trusted-proxy",
            _ACCESS,
            "Address or network of a proxy whose X-Forwarded-For is trusted; may be repeated.",
        ),
    ] = None
    join: Annotated[
        Path | None,
        option(
            "--join",
            _ACCESS,
            "Directory of a cluster: a file there tells clients of this server (`REPLCluster`).",
            metavar="DIR",
        ),
    ] = None
    advertise: Annotated[
        str | None,
        option(
            "--advertise",
            _ACCESS,
            "With --join: the URL for clients; default: this host's name and the port.",
            metavar="URL",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServerIsolationOptions:
    """The sandbox of the sessions."""

    isolation: Annotated[
        Isolation, option("--isolation", _ISOLATION, "Isolation tier of sessions.", metavar="TIER")
    ] = Isolation.AUTO
    require: Annotated[
        Require,
        option("--require", _ISOLATION, "Weakest isolation tier to accept.", metavar="TIER"),
    ] = Require.JAILED
    image: Annotated[
        str | None,
        option("--image", _ISOLATION, "Container image for the tier container.", metavar="IMAGE"),
    ] = None
    runtime: Annotated[
        str | None,
        option(
            "--runtime", _ISOLATION, "Container runtime, as the daemon names it.", metavar="NAME"
        ),
    ] = None
    python: Annotated[
        str | None,
        option(
            "--python",
            _ISOLATION,
            "Interpreter of the sessions, CPython 3.11 or later; by default that of the server.",
            metavar="FILE",
        ),
    ] = None
    mount: Annotated[
        Texts,
        option(
            "--mount",
            _ISOLATION,
            "A file or directory that sessions may read, at the same path or at INSIDE; may be "
            "repeated.",
            metavar="[INSIDE=]PATH",
        ),
    ] = None
    preload: Annotated[
        Texts,
        option(
            "--preload",
            _ISOLATION,
            "Modules to import before sessions start; may be repeated.",
            metavar="MODULE",
        ),
    ] = None


# Options of `repl-env serve`: capacity, models, quotas and logging.

_CAPACITY = "Capacity and time-outs"
_MODELS = MODEL  # for sub-calls
_STORAGE = "Quotas, sizes and logging"


class LogLevel(StrEnum):
    """The levels of the log's lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """The number of sessions and connections, and time-outs."""

    pool: Annotated[
        int | None, option("--pool", _CAPACITY, "Number of sessions to keep ready.", min=0)
    ] = None
    fair_share: Annotated[
        bool,
        option(
            "--fair-share/--no-fair-share",
            _CAPACITY,
            "Give sessions that use much CPU time a lower priority than all others.",
        ),
    ] = True
    max_sessions: Annotated[
        int,
        option(
            "--max-sessions",
            _CAPACITY,
            "Maximum number of open sessions.",
            min=1,
            envvar=[f"{PREFIX}MAX_SESSIONS", "MAX_CONCURRENT_ENVS"],  # the second is OpenEnv's
        ),
    ] = 64
    max_waiting: Annotated[
        int,
        option(
            "--max-waiting", _CAPACITY, "Maximum number of clients waiting for a session.", min=0
        ),
    ] = 64
    wait: Annotated[
        float, seconds("--wait", _CAPACITY, "Seconds a client may wait for a free session.")
    ] = 10.0
    idle: Annotated[
        float, seconds("--idle", _CAPACITY, "Seconds after which an unused session ends.")
    ] = 900.0
    grace: Annotated[
        float, seconds("--grace", _CAPACITY, "Seconds a session is kept after its socket closed.")
    ] = 60.0
    drain: Annotated[
        float,
        seconds("--drain", _CAPACITY, "Seconds running steps may take when the server stops."),
    ] = 30.0
    connections: Annotated[
        int, option("--connections", _CAPACITY, "Maximum number of open connections.", min=1)
    ] = 2048


@dataclass(frozen=True, kw_only=True)
class SubcallOptions:
    """The models that sub-calls may use, and their budget."""

    llm_url: Annotated[
        Texts,
        option(
            "--llm-url",
            _MODELS,
            "Model endpoint that a reset may name, or URL/* for all below it; may be repeated.",
            metavar="URL",
        ),
    ] = None
    model: Annotated[str | None, option("--model", _MODELS, "Model for resets that name none.")] = (
        None
    )
    base_url: Annotated[
        str | None, option("--base-url", _MODELS, "Endpoint of the model given by --model.")
    ] = None
    api_key_env: Annotated[
        str | None,
        option(
            "--api-key-env",
            _MODELS,
            "Environment variable with the API key of the model given by --model.",
            metavar="NAME",
        ),
    ] = None
    sampling: SamplingArguments = field(default_factory=SamplingArguments)
    budget_calls: Annotated[
        int, option("--budget-calls", _MODELS, "Maximum number of sub-calls of a session.")
    ] = 200
    budget_tokens: Annotated[
        str | None,
        option(
            "--budget-tokens",
            _MODELS,
            "Maximum number of tokens of a session's sub-calls.",
            metavar="IN[:OUT]",
        ),
    ] = None
    max_concurrent_subcalls: Annotated[
        int,
        option(
            "--max-concurrent-subcalls",
            _MODELS,
            "Maximum number of concurrent sub-calls of a session.",
            min=1,
        ),
    ] = 8


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Quotas, sizes and logging."""

    quota: Annotated[
        Texts,
        option(
            "--quota",
            _STORAGE,
            "Limit of each tenant, such as sessions=8 or steps_per_second=50; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None
    max_message: Annotated[
        str | None,
        option(
            "--max-message",
            _STORAGE,
            "Size limit of a WebSocket message or HTTP body; default: 128MiB, or 32MiB"
            " with --no-auth"
            " off loopback.",
        ),
    ] = None
    max_context: Annotated[
        str | None,
        option(
            "--max-context",
            _STORAGE,
            "Size limit of an uploaded context; default: 1GiB, or --max-uploads if smaller.",
        ),
    ] = None
    max_uploads: Annotated[
        str, option("--max-uploads", _STORAGE, "Memory limit of all uploaded contexts.")
    ] = "4GiB"
    log_contents: Annotated[
        bool, option("--log-contents", _STORAGE, "Write code and output of steps to the log.")
    ] = False
    log_level: Annotated[
        LogLevel | None,
        option(
            "--log-level",
            _STORAGE,
            "Lowest level of the log's lines; default: info, or debug with --log-contents.",
            metavar="LEVEL",
        ),
    ] = None


# Options of `repl-env serve`: limits of a session.

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


# The `Settings` made of the options of `repl-env serve`, or of their environment variables.

# Bytes. A reset with a task and a step with some code fit, and larger data can be uploaded; a
# server with a lower limit would answer TOO_LARGE to every client.
LEAST_MESSAGE = 4 << 10


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """All options of `repl-env serve`."""

    access: ServerAccessOptions
    isolation: ServerIsolationOptions
    limits: ServerLimitOptions
    capacity: CapacityOptions
    subcalls: SubcallOptions
    storage: StorageOptions

    @property
    def values(self) -> dict[str, Any]:
        """The values by the names of the options."""
        return {name: value for group in vars(self).values() for name, value in vars(group).items()}


def settings_of(options: ServeOptions) -> Settings:
    """The `Settings` made of the options.

    Raises:
        typer.BadParameter: naming the invalid option.
    """
    from .settings import Settings

    subcalls = _subcalls(options.subcalls)
    try:
        return Settings(
            **_access(options.access),
            **_isolation(options.isolation),
            **_limits(options.limits),
            **_capacity(options.capacity),
            **_storage(options.storage, options.access),
            **subcalls,
        )
    except (TypeError, ValueError) as error:
        raise option_error(error, options.values) from error


def _access(options: ServerAccessOptions) -> dict[str, Any]:
    return {
        "host": options.host,
        "port": options.port,
        "api_keys": options.api_keys,
        "hashed_keys": tuple(lines_of(os.environ.get(VARIABLE, ""))),
        "metrics_key": options.metrics_key,
        "no_auth": options.no_auth,
        "web": options.web,
        "origins": tuple(options.origin or ()),
        "frame_ancestors": tuple(options.frame_ancestor or ()),
        "trusted_proxies": tuple(options.trusted_proxy or ()),
    }


def _isolation(options: ServerIsolationOptions) -> dict[str, Any]:
    return {
        "isolation": options.isolation.value,
        "require": options.require.value,
        "image": options.image,
        "runtime": options.runtime,
        "python": options.python,
        "mounts": tuple(mounts_of(options.mount).items()),
        "preload": modules_of(options.preload),
    }


def _limits(options: ServerLimitOptions) -> dict[str, Any]:
    return {
        "recovery": options.recovery.value,
        "history": options.undo,
        "limits": _session_limits(options),
        "max_timeout_s": options.max_timeout,
        "policy": policy_of(options.language),
    }


def _session_limits(options: ServerLimitOptions) -> Limits:
    from repl_sandbox import Limits

    return Limits(
        memory=options.memory,
        timeout=options.timeout,
        processes=options.processes,
        open_files=options.open_files,
        file_size=options.file_size,
        workspace=options.workspace,
        output=options.output,
        cpu_seconds=options.cpu_seconds,
        grace=options.interrupt_grace,
        host_timeout=options.host_timeout,
    )


def _capacity(options: CapacityOptions) -> dict[str, Any]:
    return {
        "pool": options.pool,
        "fair_share": options.fair_share,
        "max_sessions": options.max_sessions,
        "max_waiting": options.max_waiting,
        "wait_s": options.wait,
        "idle_s": options.idle,
        "grace_s": options.grace,
        "drain_s": options.drain,
        "connections": options.connections,
    }


def _subcalls(options: SubcallOptions) -> dict[str, Any]:
    try:
        episodes = episodes_of_variables()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return {
        "llm_urls": tuple(options.llm_url or ()),
        "llm": _own_model(options),
        "budget": budget_from(options.budget_calls, options.budget_tokens, None, None),
        "episodes": replace(episodes, max_concurrent_subcalls=options.max_concurrent_subcalls),
    }


def _storage(options: StorageOptions, access: ServerAccessOptions) -> dict[str, Any]:
    from repl_sandbox.types import parse_size

    from .tenants import is_loopback, parse_quota

    uploads = parse_size(options.max_uploads, "uploads_bytes")
    public = access.no_auth and not is_loopback(access.host)
    return {
        "quota": parse_quota(options.quota or (), public=public),
        "message_bytes": _message_bytes(options.max_message),
        "context_bytes": _context_bytes(options.max_context, uploads),
        "uploads_bytes": uploads,
        "log_contents": options.log_contents,
        "log_level": None if options.log_level is None else options.log_level.value,
    }


def _own_model(options: SubcallOptions) -> LLM | None:
    """The operator's model for sub-calls, or None."""
    base_url, api_key_env = options.base_url, options.api_key_env
    if options.model is not None:
        if is_folder(options.model):
            message = "sub-calls of a server need an endpoint: give --base-url, and the name there"
            raise typer.BadParameter(message, param_hint="--model")
        model = ModelOptions(options.model, base_url, api_key_env, options.sampling)
        return llm_from(model, os.environ)
    for option, value in (("--base-url", base_url), ("--api-key-env", api_key_env)):
        if value:
            raise typer.BadParameter(f"{value!r} needs --model", param_hint=option)
    for name, value in options.sampling.arguments().items():
        raise typer.BadParameter(f"{value!r} needs --model", param_hint=option_of(name))
    return None


def _message_bytes(given: str | None) -> int | None:
    """The size limit of a message, None for the default; raises ValueError."""
    from repl_sandbox.types import parse_size

    size = None if given is None else parse_size(given, "message_bytes")
    if size is not None and size < LEAST_MESSAGE:
        least = f"{LEAST_MESSAGE >> 10}KiB"
        raise ValueError(f"message_bytes must be at least {least}, for resets and steps")
    return size


def _context_bytes(given: str | None, uploads: int) -> int:
    """The size limit of an upload, given the limit of all uploads; raises ValueError."""
    from repl_sandbox.types import parse_size

    from .settings import CONTEXT

    if given is None:
        return min(CONTEXT, uploads)
    size = parse_size(given, "context_bytes")
    if size > uploads:
        raise ValueError(f"context_bytes must be at most uploads_bytes, which is {uploads:,} bytes")
    return size


def of_variables(host: str) -> Settings:
    """The settings of the environment variables; `host`: default address."""
    found: list[Settings] = []

    def command(options: ServeOptions) -> None:
        found.append(settings_of(options))

    app = typer.Typer(add_completion=False)
    app.command()(with_option_groups(command))
    typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return found[0]

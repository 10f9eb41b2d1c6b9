"""Options of `repl-env serve`: capacity, models, quotas and logging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .serve_parameters import PREFIX, Texts, option, seconds

_CAPACITY = "Capacity and time-outs"
_MODELS = "Models for sub-calls"
_STORAGE = "Quotas, sizes and logging"


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

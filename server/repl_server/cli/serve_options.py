"""The `Settings` made of the options of `repl-env serve`, or of their environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from repl_env.cli.options.budget_options import budget_from
from repl_env.cli.options.model_options import ModelOptions, llm_from
from repl_env.cli.options.option_groups import with_option_groups
from repl_env.cli.options.session_options import modules_of, mounts_of, policy_of

from ..auth.api_keys import VARIABLE, lines_of
from .access_options import ServerAccessOptions, ServerIsolationOptions
from .capacity_options import CapacityOptions, StorageOptions, SubcallOptions
from .option_errors import option_error
from .serve_parameters import PREFIX
from .session_limit_options import ServerLimitOptions

if TYPE_CHECKING:
    from repl_env.llm.model_spec import LLM
    from repl_sandbox import Limits

    from ..settings import Settings

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
    from ..settings import Settings

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
    from .openenv_variables import episodes_of_variables

    try:
        episodes = episodes_of_variables()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return {
        "llm_urls": tuple(options.llm_url or ()),
        "llm": _own_model(options.model, options.base_url, options.api_key_env),
        "budget": budget_from(options.budget_calls, options.budget_tokens, None, None),
        "episodes": replace(episodes, max_concurrent_subcalls=options.max_concurrent_subcalls),
    }


def _storage(options: StorageOptions, access: ServerAccessOptions) -> dict[str, Any]:
    from repl_sandbox.session_limits import parse_size

    from ..quotas.tenant_quota import parse_quota
    from ..tenants.client_address import is_loopback

    uploads = parse_size(options.max_uploads, "uploads_bytes")
    public = access.no_auth and not is_loopback(access.host)
    return {
        "quota": parse_quota(options.quota or (), public=public),
        "message_bytes": _message_bytes(options.max_message),
        "context_bytes": _context_bytes(options.max_context, uploads),
        "uploads_bytes": uploads,
        "log_contents": options.log_contents,
    }


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
    found: list[Settings] = []

    def command(options: ServeOptions) -> None:
        found.append(settings_of(options))

    app = typer.Typer(add_completion=False)
    app.command()(with_option_groups(command))
    typer.main.get_command(app).main(
        ["--host", os.environ.get(f"{PREFIX}HOST", host)], "repl_server", standalone_mode=False
    )
    return found[0]

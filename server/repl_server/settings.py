"""`Settings`: the immutable configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType

from repl_env.common.values import at_least
from repl_env.env.options import EnvironmentOptions as EnvironmentSettings
from repl_env.episode.sandboxes import SandboxSettings
from repl_env.llm.spec import LLM
from repl_env.rlm.budget import Budget
from repl_sandbox import Limits, Policy
from repl_sandbox.options import RecoveryMode, check_mounts, check_snapshots

from .tenants import TenantQuota, is_loopback

__all__ = ["Settings"]

MIB = 1 << 20
LOG_LEVELS = ("debug", "info", "warning", "error")


# Minimum of each count.
_MINIMUMS: Mapping[str, int] = {
    "port": 0,
    "max_sessions": 1,
    "max_waiting": 0,
    "context_bytes": 1,
    "uploads_bytes": 1,
    "inbound_bytes": 1,
    "connections": 0,
}
_OPTIONAL_MINIMUMS: Mapping[str, int] = {"pool": 0, "message_bytes": 1, "history": 0}
# Durations in seconds, and whether 0 is too short.
_SECONDS: Mapping[str, bool] = {
    "wait_s": False,
    "idle_s": True,
    "grace_s": False,
    "body_s": True,
    "send_s": True,
    "drain_s": False,
}
_OPTIONAL_SECONDS: Mapping[str, bool] = {"max_timeout_s": False, "ping_s": True}
_KINDS: Mapping[str, tuple[UnionType | type, str]] = {
    "host": (str, "a str"),
    "api_keys": (Path | None, "a pathlib.Path"),
    "metrics_key": (str | None, "the name of a key"),
    "no_auth": (bool, "a bool"),
    "web": (bool | None, "a bool"),
    "fair_share": (bool, "a bool"),
    "log_contents": (bool, "a bool"),
    "limits": (Limits, "a Limits (from repl_env import Limits)"),
    "llm": (LLM | None, "an LLM (from repl_env import LLM)"),
    "budget": (Budget, "a Budget (from repl_env.rlm import Budget)"),
    "quota": (TenantQuota | None, "a TenantQuota"),
    "episodes": (EnvironmentSettings, "a repl_env.env.options.EnvironmentOptions"),
}
_TEXTS = ("hashed_keys", "origins", "frame_ancestors", "llm_urls", "trusted_proxies")
_HIGHEST_PORT = 65_535


def _check_seconds(value: object, name: str, *, above_zero: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not (value > 0 if above_zero else value >= 0):  # nor NaN
        raise ValueError(f"{name} must be {'above' if above_zero else 'at least'} 0, not {value}")


def _check_texts(value: object, name: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a tuple of str, not {type(value).__name__}")
    for each in value:
        if not isinstance(each, str):
            raise TypeError(f"{name} must contain only str, not {type(each).__name__}")


# Bytes. Parsing a message blocks all other clients: about 0.15 s for 32 MiB, 0.5 s for 100 MiB.
# OpenEnv's clients know no uploads and send contexts of this size in one message; an anonymous
# client may send twice the limit of OpenEnv's server.
MESSAGE = 128 * MIB
PUBLIC_MESSAGE = 32 * MIB

# Bytes of one upload, kept in memory.
CONTEXT = 1 << 30

# Ready sessions. A session takes longer to replace than a client needs to come back: with one ready
# session, a client that opens, resets and closes without pause often found none. Two idle sessions
# take about 3 MB.
POOL = 2

# Seconds of execution that a step may request: a step without end would hold its session for ever.
LONGEST_STEP_S = 3600.0

# Kept output of a step: about a hundred times the part that is shown. The default of a local
# session is 64 MiB; a server holds that much for each session, and joins the chunks when the step
# ends, which blocks all other clients: 0.2 s for 64 MiB, 1 ms for this.
OUTPUT = "1MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of a server.

    Args:
        host, port: address to listen on; port 0 picks a free port.
        api_keys: file of hashed API keys (`repl-env keys`). None: no keys are required, which is
            allowed on loopback, or with `no_auth`.
        hashed_keys: further lines of a key file (from the environment).
        metrics_key: name of the key for which `/metrics` names all keys; every other key sees only
            itself by name. None: no such key.
        no_auth: serve every client that can reach the port.
        web: serve the playground at `/`, and let browsers load it without a key. None: on loopback.
        origins: origins of web pages that may send requests, beside the server's own.
        frame_ancestors: sites whose pages may show the server's pages in a frame.
        require, isolation, image, runtime: isolation of sessions, as in `repl_sandbox.Sandbox`.
        recovery: "snapshot" or "restart".
        history: number of cells that a client can undo; each takes one more snapshot of a session.
            None: 1 on a server with the playground, else 0.
        max_sessions: maximum number of open sessions.
        max_waiting: maximum number of clients that wait for a session.
        wait_s: seconds a client may wait for a session.
        idle_s: seconds after which a session without requests ends.
        grace_s: seconds a session is kept after its socket closed.
        limits, policy, preload, python: of the sessions' sandbox; default output limit: OUTPUT.
        mounts: pairs of a path inside and a path of the host that sessions may read.
        pool: number of ready sessions; None: POOL, or `max_sessions` if smaller.
        fair_share: sessions that use much CPU time get a lower priority than the others and the
            server.
        max_timeout_s: maximum `timeout_s` of a step; at least `limits.timeout`, which applies to
            steps without one. None: LONGEST_STEP_S, or `limits.timeout` if larger.
        message_bytes: size limit of a WebSocket message or HTTP body; None: MESSAGE, or
            PUBLIC_MESSAGE on a server with `no_auth` off loopback.
        context_bytes: size limit of one upload.
        uploads_bytes: memory limit of all uploads.
        inbound_bytes: memory limit of all partly received messages.
        connections: maximum number of open connections.
        body_s: seconds within which a request must arrive, headers and body.
        send_s: seconds within which a client must read a reply.
        ping_s: seconds between WebSocket pings, and for the pong to arrive; None: no pings.
        drain_s: seconds running steps may take when the server stops.
        llm_urls: model endpoints that a reset may name for sub-calls; empty: none.
        llm: model for the sub-calls of resets that name no model; None: none.
        budget: of the sub-calls of one session.
        quota: of each tenant; None: unlimited for keys, ADDRESS_QUOTA for addresses unless the
            server is on loopback.
        trusted_proxies: addresses of proxies whose `X-Forwarded-For` is used.
        episodes: defaults of episodes: context, task, iterations and lengths.
        log_contents: write code and output to the log, for debugging.
        log_level: lowest level of the log's lines, one of LOG_LEVELS. None: "info", or "debug" with
            `log_contents`.

    Raises:
        TypeError, ValueError: naming the field, or two fields that exclude each other.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Path | None = None
    hashed_keys: tuple[str, ...] = ()
    metrics_key: str | None = None
    no_auth: bool = False
    web: bool | None = None
    origins: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    require: str = "jailed"
    isolation: str = "auto"
    image: str | None = None
    runtime: str | None = None
    recovery: RecoveryMode = "snapshot"
    history: int | None = None
    max_sessions: int = 64
    max_waiting: int = 64
    wait_s: float = 10.0
    idle_s: float = 900.0
    grace_s: float = 60.0
    limits: Limits = field(default_factory=lambda: Limits(output=OUTPUT))
    policy: Policy | None = None
    preload: tuple[str, ...] = ()
    python: str | None = None
    mounts: tuple[tuple[str, str], ...] = ()
    pool: int | None = None
    fair_share: bool = True
    max_timeout_s: float | None = None
    message_bytes: int | None = None
    context_bytes: int = CONTEXT
    uploads_bytes: int = 4 << 30
    inbound_bytes: int = 1 << 30
    connections: int = 2048
    body_s: float = 30.0
    send_s: float = 20.0
    ping_s: float | None = 20.0
    drain_s: float = 30.0
    llm_urls: tuple[str, ...] = ()
    llm: LLM | None = None
    budget: Budget = field(default_factory=Budget)
    quota: TenantQuota | None = None
    trusted_proxies: tuple[str, ...] = ()
    episodes: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    log_contents: bool = False
    log_level: str | None = None

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUMS.items():
            at_least(getattr(self, name), minimum, name)
        for name, above_zero in _SECONDS.items():
            _check_seconds(getattr(self, name), name, above_zero=above_zero)
        for name, above_zero in _OPTIONAL_SECONDS.items():
            if (given := getattr(self, name)) is not None:
                _check_seconds(given, name, above_zero=above_zero)
        for name, minimum in _OPTIONAL_MINIMUMS.items():
            if (given := getattr(self, name)) is not None:
                at_least(given, minimum, name)
        for name, (kind, description) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must be {description}, not {type(value).__name__}")
        for name in _TEXTS:
            _check_texts(getattr(self, name), name)
        # Checks the names of tiers and their combinations, the limits, the preload and the policy.
        SandboxSettings.of(
            *(self.isolation, self.require, self.limits, self.preload, self.policy, self.image),
            self.runtime,
        )
        if self.log_level is not None and self.log_level not in LOG_LEVELS:
            raise ValueError(
                f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}"
            )
        check_mounts(dict(self.mounts))
        check_snapshots(self.recovery, self.undoable)
        self._check_together()

    def _check_together(self) -> None:
        if self.port > _HIGHEST_PORT:
            raise ValueError(f"port must be at most {_HIGHEST_PORT}, not {self.port}")
        if self.ready > self.max_sessions:
            raise ValueError(
                f"pool: {self.pool} ready sessions are more than max_sessions allows"
                f" ({self.max_sessions})"
            )
        if self.max_timeout_s is not None and self.max_timeout_s < self.limits.timeout:
            raise ValueError(
                f"max_timeout_s must be at least limits.timeout, which is {self.limits.timeout:g}"
                f" seconds, not {self.max_timeout_s:g}"
            )
        if self.message_bytes is not None and self.message_bytes > self.inbound_bytes:
            raise ValueError(
                f"message_bytes: a message of {self.message_bytes:,} bytes exceeds inbound_bytes"
                f" ({self.inbound_bytes:,}), the limit of all partly received messages"
            )

    @property
    def ready(self) -> int:
        """Number of ready sessions."""
        return min(POOL, self.max_sessions) if self.pool is None else self.pool

    @property
    def has_playground(self) -> bool:
        """True if the server has the playground at `/`."""
        return is_loopback(self.host) if self.web is None else self.web

    @property
    def undoable(self) -> int:
        """Number of cells that a client can undo."""
        if self.history is None:
            return int(self.has_playground and self.recovery == "snapshot")
        return self.history

    @property
    def largest_message(self) -> int:
        """Size limit of a message or body in bytes."""
        if self.message_bytes is not None:
            return self.message_bytes
        return PUBLIC_MESSAGE if self.no_auth and not is_loopback(self.host) else MESSAGE

    @property
    def longest_step_s(self) -> float:
        """Maximum seconds of execution of a step."""
        if self.max_timeout_s is None:
            return max(LONGEST_STEP_S, self.limits.timeout)
        return self.max_timeout_s

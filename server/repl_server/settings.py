"""`Settings`: what a server was started with, frozen; read from the environment once, by `main`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType

from repl_env.common.argument_checks import at_least
from repl_env.env.options import EnvironmentOptions as EnvironmentSettings
from repl_env.episode.sandbox_provider import SandboxSettings
from repl_env.llm.model_spec import LLM
from repl_env.rlm.budget.budget_limits import Budget
from repl_sandbox import Limits, Policy
from repl_sandbox.backends.sandbox_arguments import RecoveryMode, check_snapshots

from .quotas.tenant_quota import TenantQuota
from .tenants.client_address import is_loopback

__all__ = ["Settings"]

MIB = 1 << 20


# Fields that are counts, with the least that each may be.
_LEAST: Mapping[str, int] = {
    "port": 0,
    "max_sessions": 1,
    "max_waiting": 0,
    "context_bytes": 1,
    "uploads_bytes": 1,
    "inbound_bytes": 1,
    "connections": 0,
}
_LEAST_IF_GIVEN: Mapping[str, int] = {"pool": 0, "message_bytes": 1}
# Fields in seconds, and whether 0 would leave no time for what has to be.
_SECONDS: Mapping[str, bool] = {
    "wait_s": False,
    "idle_s": True,
    "grace_s": False,
    "body_s": True,
    "send_s": True,
    "drain_s": False,
}
_SECONDS_IF_GIVEN: Mapping[str, bool] = {"max_timeout_s": False, "ping_s": True}
_KINDS: Mapping[str, tuple[UnionType | type, str]] = {
    "host": (str, "a str"),
    "api_keys": (Path | None, "a pathlib.Path"),
    "metrics_key": (str | None, "the name of a key"),
    "no_auth": (bool, "a bool"),
    "fair_share": (bool, "a bool"),
    "log_contents": (bool, "a bool"),
    "limits": (Limits, "a Limits (from repl_env import Limits)"),
    "llm": (LLM | None, "an LLM (from repl_env import LLM)"),
    "budget": (Budget, "a Budget (from repl_env.rlm import Budget)"),
    "quota": (TenantQuota | None, "a Quota"),
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
        raise TypeError(f"{name} must be a tuple of texts, not {type(value).__name__}")
    for each in value:
        if not isinstance(each, str):
            raise TypeError(f"{name}: each must be a str, not {type(each).__name__}")


# Bytes. While a message is parsed all others wait: some 0.15 s for 32 MiB, 0.5 for 100. So much do
# OpenEnv's clients send, which know no uploads; of strangers twice what OpenEnv's server takes.
MESSAGE = 128 * MIB
STRANGERS_MESSAGE = 32 * MIB

# Bytes of one upload, kept in memory.
CONTEXT = 1 << 30

# Sessions ready for whoever comes. One is used up while the next is made, which takes longer than a
# client needs to come again: with one, a client that opens, resets and closes without a pause often
# found none. Two idle sessions are some 3 MB.
POOL = 2

# Seconds that a step may ask for: long enough for what anybody waits for; a step without end would
# keep its session for ever.
LONGEST_STEP_S = 3600.0

# Of what a step writes: some hundred times what is shown. Not the 64 MiB of a session that is one
# user's own: the server holds as much for each session, and puts it together when the step ends,
# for which all others wait: 0.2 s for 64 MiB, 1 ms for this.
OUTPUT = "1MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A server's settings.

    Args:
        host, port: where it listens; port 0 takes a free one.
        api_keys: a file of hashed keys (`repl-env keys`). None: no keys are asked for, which is
            allowed on loopback, or with `no_auth`.
        hashed_keys: further lines of a key file (from the environment).
        metrics_key: the name of the key that is told of all keys by `/metrics`; others, of
            themselves. None: there is none.
        no_auth: serve whoever can reach the port.
        origins: of web pages that may ask, beside the server's own.
        frame_ancestors: sites whose pages may show the server's in a frame.
        require, isolation, image, runtime: of sessions, as in `repl_sandbox.Sandbox`.
        recovery: "snapshot" or "restart".
        max_sessions: open at once. max_waiting: who may wait for one; wait_s: how long.
        idle_s: without a request, a session ends. grace_s: how long it outlives its socket.
        limits, policy, preload: of the sessions' sandbox. `limits.output` is OUTPUT if no limits
            are given.
        pool: sessions made ahead of time; None: POOL, or `max_sessions` if these are fewer.
        fair_share: of the sessions' sandbox: those that burn CPU time give way to the others, and
            to the server.
        max_timeout_s: the most that a step may ask for as its own limit of execution; one that asks
            for none has `limits.timeout`, which is no more. None: LONGEST_STEP_S, or that if it is
            more.
        message_bytes: of one WebSocket message or HTTP body; None: MESSAGE, and STRANGERS_MESSAGE
            where whoever reaches the port is served. context_bytes: of one upload.
        uploads_bytes: of all uploads kept, in memory, likewise.
        inbound_bytes: of all messages that are half received.
        connections: open at once, whoever has them.
        body_s: within which a request must have come whole, headers and body.
        send_s: within which a client must take what it is sent.
        ping_s: between pings of WebSockets, and how long their answers may take; None: no pings.
        drain_s: how long running steps may take when the server stops.
        llm_urls: endpoints for sub-calls that a reset may name; empty: none.
        llm: answers the sub-calls of resets that name no model; None: nobody.
        budget: of one session's sub-calls.
        quota: of each tenant; None: unlimited for keys, ADDRESS_QUOTA for addresses if the server
            is not on loopback alone.
        trusted_proxies: addresses whose `X-Forwarded-For` is believed.
        episodes: context, task, iterations and lengths of episodes whose reset does not say them.
        log_contents: write code and output into the log, for debugging.

    Raises:
        TypeError, ValueError: naming the field, or the two that exclude each other.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Path | None = None
    hashed_keys: tuple[str, ...] = ()
    metrics_key: str | None = None
    no_auth: bool = False
    origins: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    require: str = "jailed"
    isolation: str = "auto"
    image: str | None = None
    runtime: str | None = None
    recovery: RecoveryMode = "snapshot"
    max_sessions: int = 64
    max_waiting: int = 64
    wait_s: float = 10.0
    idle_s: float = 900.0
    grace_s: float = 60.0
    limits: Limits = field(default_factory=lambda: Limits(output=OUTPUT))
    policy: Policy | None = None
    preload: tuple[str, ...] = ()
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

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            at_least(getattr(self, name), least, name)
        for name, above_zero in _SECONDS.items():
            _check_seconds(getattr(self, name), name, above_zero=above_zero)
        for name, above_zero in _SECONDS_IF_GIVEN.items():
            if (given := getattr(self, name)) is not None:
                _check_seconds(given, name, above_zero=above_zero)
        for name, least in _LEAST_IF_GIVEN.items():
            if (given := getattr(self, name)) is not None:
                at_least(given, least, name)
        for name, (kind, said) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must be {said}, not {type(value).__name__}")
        for name in _TEXTS:
            _check_texts(getattr(self, name), name)
        # The names of tiers, and which of them exclude each other; limits, preload and policy.
        SandboxSettings.of(
            *(self.isolation, self.require, self.limits, self.preload, self.policy, self.image),
            self.runtime,
        )
        check_snapshots(self.recovery, 0)
        self._check_together()

    def _check_together(self) -> None:
        if self.port > _HIGHEST_PORT:
            raise ValueError(f"port must be at most {_HIGHEST_PORT}, not {self.port}")
        if self.ready > self.max_sessions:
            raise ValueError(
                f"pool: {self.pool} sessions made ahead of time, of which max_sessions lets"
                f" only {self.max_sessions} be used"
            )
        if self.max_timeout_s is not None and self.max_timeout_s < self.limits.timeout:
            raise ValueError(
                f"max_timeout_s (--max-timeout): no step may ask for more than"
                f" {self.max_timeout_s:g} seconds, and one that asks for nothing has"
                f" {self.limits.timeout:g}: lower that too, which is limits.timeout (--timeout)"
            )
        if self.message_bytes is not None and self.message_bytes > self.inbound_bytes:
            raise ValueError(
                f"message_bytes: no message of {self.message_bytes:,} bytes can come, for all that"
                f" are half received have {self.inbound_bytes:,} (inbound_bytes)"
            )

    @property
    def ready(self) -> int:
        """How many sessions are made ahead of time."""
        return min(POOL, self.max_sessions) if self.pool is None else self.pool

    @property
    def largest_message(self) -> int:
        """Bytes of a message or body."""
        if self.message_bytes is not None:
            return self.message_bytes
        return STRANGERS_MESSAGE if self.no_auth and not is_loopback(self.host) else MESSAGE

    @property
    def longest_step_s(self) -> float:
        """Seconds of execution that no step may ask for more than."""
        if self.max_timeout_s is None:
            return max(LONGEST_STEP_S, self.limits.timeout)
        return self.max_timeout_s

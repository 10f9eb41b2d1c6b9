"""`QuotaRegistry`: what each tenant has used of what `TenantQuota` allows.

Two tables say what is counted: what comes back as time passes, and what is held until it is let go.
Counting is done on the event loop, by one thread.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant
from .tenant_quota import ADDRESS_QUOTA, TenantQuota
from .token_bucket import Clock, TokenBucket


@dataclass(frozen=True, slots=True)
class RateLimit:
    """An allowance of so many in `seconds`; `burst` times that can be taken at once."""

    seconds: float
    burst: float
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class UsageLimit:
    """A limit on what a tenant has at one time."""

    words: str


# By the fields of `TenantQuota`. A burst of ten seconds' worth lets a client that begins, or comes
# back
# after a pause, catch up; an hour's worth is an hour's worth however it is used.
RATES = {
    "requests_per_second": RateLimit(1, 10, "RATE_LIMITED", "requests per second"),
    "steps_per_second": RateLimit(1, 10, "RATE_LIMITED", "steps per second"),
    "cpu_seconds_per_hour": RateLimit(3600, 1, "QUOTA_EXCEEDED", "CPU seconds per hour"),
    "calls_per_hour": RateLimit(3600, 1, "QUOTA_EXCEEDED", "sub-calls per hour"),
}
HELD = {
    "sessions": UsageLimit("open sessions"),
    "uploaded_bytes": UsageLimit("bytes of uploaded contexts"),
    "connections": UsageLimit("connections at once"),
}

# Addresses that are remembered because they have something or owe something. 65,536 meters take
# about 80 MB; a server that sees more strangers than that within an hour is under attack, and
# forgetting whom it can would hand each of them a new allowance.
MAX_ADDRESSES = 1 << 16
# Meters looked at for each new one: two keep the number of idle ones falling.
_IDLE_CHECKS = 2
# What must be left of a tenant's CPU time for another step. What a step takes is known after it.
_CPU_FOR_A_STEP = 1.0


class UsageMeter:
    """What one tenant has used; methods raise `RequestError` for what would be too much.

    Nothing is counted of a request that is refused.
    """

    __slots__ = ("_buckets", "_held", "_quota")

    def __init__(self, quota: TenantQuota, clock: Clock) -> None:
        self._quota = quota
        self._buckets: dict[str, TokenBucket] = {}
        for name, rate in RATES.items():
            limit = getattr(quota, name)
            if limit is not None:
                # Whoever may do little at all may do one thing at a time.
                size = max(limit * rate.burst, 1.0 if limit else 0.0)
                self._buckets[name] = TokenBucket(size, limit / rate.seconds, clock)
        self._held = dict.fromkeys(HELD, 0)

    @property
    def owes_nothing(self) -> bool:
        """Whether a new meter would say the same."""
        return not any(self._held.values()) and all(each.full for each in self._buckets.values())

    def request(self) -> None:
        """Count a request of any kind."""
        if self._buckets:  # a server for one user has none
            self._take("requests_per_second", 1)

    def step(self) -> None:
        """Count a step; refused also while CPU seconds of earlier ones are owed."""
        if self._buckets:
            self._check("cpu_seconds_per_hour", _CPU_FOR_A_STEP)
            self._take("steps_per_second", 1)

    @property
    def counts_cpu(self) -> bool:
        """Whether CPU time is limited."""
        return "cpu_seconds_per_hour" in self._buckets

    @property
    def owes_cpu(self) -> bool:
        """Whether so much of it is used up that steps are refused."""
        bucket = self._buckets.get("cpu_seconds_per_hour")
        return bucket is not None and bucket.wait(_CPU_FOR_A_STEP) > 0

    def spend_cpu(self, seconds: float) -> None:
        """Book CPU time that was used. It raises nothing: the next step or session is refused."""
        bucket = self._buckets.get("cpu_seconds_per_hour")
        if bucket is not None:
            bucket.owe(max(0.0, seconds))

    def open_session(self) -> None:
        """Count a session from now on; refused also while CPU seconds are owed."""
        self._check("cpu_seconds_per_hour", _CPU_FOR_A_STEP)
        self._hold("sessions", 1)

    def close_session(self) -> None:
        """The session is gone."""
        self._release("sessions", 1)

    def open_connection(self) -> None:
        """Count a WebSocket or an HTTP request from now on."""
        self._hold("connections", 1)

    def close_connection(self) -> None:
        """It is over."""
        self._release("connections", 1)

    def hold_bytes(self, count: int) -> None:
        """Count `count` bytes of an upload from now on."""
        self._hold("uploaded_bytes", count)

    def release_bytes(self, count: int) -> None:
        """The bytes are forgotten."""
        self._release("uploaded_bytes", count)

    def bytes_left(self) -> int | None:
        """How many bytes more can be held; None: no limit."""
        limit = self._quota.uploaded_bytes
        return None if limit is None else limit - self._held["uploaded_bytes"]

    def reserve_calls(self, wanted: int) -> int:
        """Take up to `wanted` sub-calls; returns how many: at least one, if any is wanted."""
        bucket = self._buckets.get("calls_per_hour")
        if bucket is None or wanted <= 0:
            return max(0, wanted)
        granted = min(wanted, bucket.whole)
        if not granted:
            self._take("calls_per_hour", 1)
        bucket.owe(granted)
        return granted

    def return_calls(self, count: int) -> None:
        """Give back sub-calls that were reserved and not made."""
        bucket = self._buckets.get("calls_per_hour")
        if bucket is not None:
            bucket.put_back(max(0, count))

    def _take(self, name: str, amount: float) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None:
            self._check_wait(bucket.take(amount), name)

    def _check(self, name: str, amount: float) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None:
            self._check_wait(bucket.wait(amount), name)

    def _check_wait(self, wait: float, name: str) -> None:
        if wait:
            rate = RATES[name]
            raise RequestError(
                rate.code,
                f"The limit is {getattr(self._quota, name):g} {rate.words}.",
                retry_after=wait if math.isfinite(wait) else None,
            )

    def _hold(self, name: str, count: int) -> None:
        limit = getattr(self._quota, name)
        if limit is not None and self._held[name] + count > limit:
            details: dict[str, Any] = {"limit": limit}
            raise RequestError(
                "QUOTA_EXCEEDED", f"The limit is {limit} {HELD[name].words}.", **details
            )
        self._held[name] += count

    def _release(self, name: str, count: int) -> None:
        if count > self._held[name]:
            raise ValueError(f"{count} {HELD[name].words} let go of, {self._held[name]} held")
        self._held[name] -= count


class QuotaRegistry:
    """The meters of all tenants, by `Settings.quota`.

    A meter that owes nothing may be forgotten: the next one of its tenant says the same. One that
    has something or owes something never is, so a tenant cannot lose a debt by waiting or by
    having many others come.
    """

    def __init__(
        self,
        quota: TenantQuota | None = None,
        *,
        public: bool = False,
        clock: Clock = time.monotonic,
        max_addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._clock = clock
        self._max_addresses = max_addresses
        self._quota_of_keys = quota or TenantQuota()
        self._quota_of_addresses = quota or (ADDRESS_QUOTA if public else TenantQuota())
        self._keys: dict[str, UsageMeter] = {}
        # The one that was asked for longest ago comes first.
        self._addresses: OrderedDict[str, UsageMeter] = OrderedDict()

    def __len__(self) -> int:
        """How many meters are remembered."""
        return len(self._keys) + len(self._addresses)

    def meter_of(self, tenant: Tenant) -> UsageMeter:
        """The meter of `tenant`; the same one as long as anything is held or owed there.

        Raises:
            Refusal: RATE_LIMITED; the tenant is new, and too many addresses are remembered.
        """
        if tenant.kind == "key":
            meter = self._keys.get(tenant.name)
            if meter is None:
                # As many as there are keys: the operator bounds these.
                meter = self._keys[tenant.name] = UsageMeter(self._quota_of_keys, self._clock)
            return meter
        known = self._addresses.get(tenant.name)
        if known is not None:
            self._addresses.move_to_end(tenant.name)
            return known
        self._forget_idle()
        if len(self._addresses) >= self._max_addresses:
            raise RequestError(
                "RATE_LIMITED", "Too many addresses ask at this time.", retry_after=60.0
            )
        meter = self._addresses[tenant.name] = UsageMeter(self._quota_of_addresses, self._clock)
        return meter

    def _forget_idle(self) -> None:
        for _ in range(min(_IDLE_CHECKS, len(self._addresses))):
            name, meter = next(iter(self._addresses.items()))
            if meter.owes_nothing:
                del self._addresses[name]
            else:
                self._addresses.move_to_end(name)

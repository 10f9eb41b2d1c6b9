"""`QuotaRegistry`: the usage of each tenant, against its `TenantQuota`.

RATES lists the limits that recover with time, IN_USE those on resources held at one time. Only the
event loop's thread counts.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .tenants import ADDRESS_QUOTA, RequestError, Tenant, TenantQuota

# `TokenBucket`: a rate limit that allows bursts.

Clock = Callable[[], float]

# Levels are sums of products of floats, so a shortage smaller than this is a rounding error.
_ROUNDING = 1e-9


class TokenBucket:
    """Holds up to `size` tokens and gains `rate` tokens a second; starts full.

    `take` gives out at most `size + rate * t` tokens in any `t` seconds. `owe` records usage that
    is known only afterwards, and may leave a debt.
    """

    __slots__ = ("_at", "_clock", "_level", "rate", "size")

    def __init__(self, size: float, rate: float, clock: Clock) -> None:
        self.size = size
        self.rate = rate
        self._clock = clock
        self._level = size
        self._at = clock()

    @property
    def level(self) -> float:
        """Tokens available now; negative for a debt."""
        now = self._clock()
        self._level = min(self.size, self._level + self.rate * (now - self._at))
        self._at = now
        return self._level

    @property
    def full(self) -> bool:
        """True if the bucket equals a new one."""
        return self.level >= self.size - _ROUNDING

    @property
    def whole(self) -> int:
        """Whole tokens available now."""
        return max(0, math.floor(self.level + _ROUNDING))

    def wait(self, amount: float) -> float:
        """Seconds until `amount` tokens are available; infinite if they never will be."""
        missing = amount - self.level
        if missing <= _ROUNDING:
            return 0.0
        if amount > self.size + _ROUNDING or self.rate <= 0:
            return math.inf
        return missing / self.rate

    def take(self, amount: float) -> float:
        """Take `amount` tokens and return 0, or take none and return the seconds to wait."""
        wait = self.wait(amount)
        if not wait:
            self._level -= amount
        return wait

    def owe(self, amount: float) -> None:
        """Subtract tokens for past usage, even below zero."""
        self._level = self.level - amount

    def put_back(self, amount: float) -> None:
        """Return tokens that were taken and not used."""
        self._level = min(self.size, self.level + amount)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit per `seconds`; a burst may use `burst` times the limit at once."""

    seconds: float
    burst: float
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class UsageLimit:
    """A limit on a resource that a tenant holds at one time."""

    words: str


# By field of `TenantQuota`. A burst of ten seconds lets a client catch up that starts or comes back
# after a pause; an hourly limit is the same however it is spread over the hour.
RATES = {
    "requests_per_second": RateLimit(1, 10, "RATE_LIMITED", "requests per second"),
    "steps_per_second": RateLimit(1, 10, "RATE_LIMITED", "steps per second"),
    "cpu_seconds_per_hour": RateLimit(3600, 1, "QUOTA_EXCEEDED", "CPU seconds per hour"),
    "calls_per_hour": RateLimit(3600, 1, "QUOTA_EXCEEDED", "sub-calls per hour"),
}
IN_USE = {
    "sessions": UsageLimit("open sessions"),
    "uploaded_bytes": UsageLimit("bytes of uploaded contexts"),
    "connections": UsageLimit("connections at once"),
}

# Addresses remembered because they hold resources or have a debt. 65,536 meters take about 80 MB. A
# server with more anonymous clients within an hour is under attack; if it forgot meters, each of
# these clients would get a fresh allowance.
MAX_ADDRESSES = 1 << 16
# Idle meters looked for with each new one: two keep the number of idle meters falling.
_IDLE_CHECKS = 2
# CPU seconds a tenant must have left for another step, whose usage is known only afterwards.
_CPU_FOR_A_STEP = 1.0


class UsageMeter:
    """The usage of one tenant. Methods raise RequestError, and count nothing, above a limit."""

    __slots__ = ("_buckets", "_in_use", "_quota")

    def __init__(self, quota: TenantQuota, clock: Clock) -> None:
        self._quota = quota
        self._buckets: dict[str, TokenBucket] = {}
        for name, rate in RATES.items():
            limit = getattr(quota, name)
            if limit is not None:
                # A tenant with a very low rate may still do one thing at a time.
                size = max(limit * rate.burst, 1.0 if limit else 0.0)
                self._buckets[name] = TokenBucket(size, limit / rate.seconds, clock)
        self._in_use = dict.fromkeys(IN_USE, 0)

    @property
    def owes_nothing(self) -> bool:
        """True if the meter equals a new one."""
        return not any(self._in_use.values()) and all(each.full for each in self._buckets.values())

    def request(self) -> None:
        """Count a request of any kind."""
        if self._buckets:  # empty without limits, as on a server for one user
            self._take("requests_per_second", 1)

    def step(self) -> None:
        """Count a step; refused also while the tenant owes CPU time."""
        if self._buckets:
            self._check("cpu_seconds_per_hour", _CPU_FOR_A_STEP)
            self._take("steps_per_second", 1)

    @property
    def counts_cpu(self) -> bool:
        """True if the tenant's CPU time is limited."""
        return "cpu_seconds_per_hour" in self._buckets

    @property
    def owes_cpu(self) -> bool:
        """True if steps are refused because the CPU time is used up."""
        bucket = self._buckets.get("cpu_seconds_per_hour")
        return bucket is not None and bucket.wait(_CPU_FOR_A_STEP) > 0

    def spend_cpu(self, seconds: float) -> None:
        """Count CPU time that was used. Never raises: the next step or session is refused."""
        bucket = self._buckets.get("cpu_seconds_per_hour")
        if bucket is not None:
            bucket.owe(max(0.0, seconds))

    def open_session(self) -> None:
        """Count one more open session; refused also while the tenant owes CPU time."""
        self._check("cpu_seconds_per_hour", _CPU_FOR_A_STEP)
        self._hold("sessions", 1)

    def close_session(self) -> None:
        """Count one open session less."""
        self._release("sessions", 1)

    def open_connection(self) -> None:
        """Count one more WebSocket or HTTP request in progress."""
        self._hold("connections", 1)

    def close_connection(self) -> None:
        """Count one WebSocket or HTTP request less."""
        self._release("connections", 1)

    def hold_bytes(self, count: int) -> None:
        """Count `count` more bytes of uploads."""
        self._hold("uploaded_bytes", count)

    def release_bytes(self, count: int) -> None:
        """Count `count` bytes of uploads less."""
        self._release("uploaded_bytes", count)

    def bytes_left(self) -> int | None:
        """Bytes of uploads that the tenant may still add; None without a limit."""
        limit = self._quota.uploaded_bytes
        return None if limit is None else limit - self._in_use["uploaded_bytes"]

    def reserve_calls(self, wanted: int) -> int:
        """Reserve up to `wanted` sub-calls and return how many; at least one, if any is wanted."""
        bucket = self._buckets.get("calls_per_hour")
        if bucket is None or wanted <= 0:
            return max(0, wanted)
        granted = min(wanted, bucket.whole)
        if not granted:
            self._take("calls_per_hour", 1)
        bucket.owe(granted)
        return granted

    def return_calls(self, count: int) -> None:
        """Return sub-calls that were reserved and not made."""
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
                f"the limit is {getattr(self._quota, name):g} {rate.words}",
                retry_after=wait if math.isfinite(wait) else None,
            )

    def _hold(self, name: str, count: int) -> None:
        limit = getattr(self._quota, name)
        if limit is not None and self._in_use[name] + count > limit:
            details: dict[str, Any] = {"limit": limit}
            message = f"the limit is {limit} {IN_USE[name].words}"
            raise RequestError("QUOTA_EXCEEDED", message, **details)
        self._in_use[name] += count

    def _release(self, name: str, count: int) -> None:
        if count > self._in_use[name]:
            raise ValueError(f"{count} {IN_USE[name].words} released, {self._in_use[name]} held")
        self._in_use[name] -= count


class QuotaRegistry:
    """The meters of all tenants. `public`: addresses without a `quota` get ADDRESS_QUOTA.

    A meter may be dropped only if it equals a new one. A tenant that holds a resource or has a debt
    keeps its meter, however long it waits and however many other tenants come.
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
        # Least recently used first.
        self._addresses: OrderedDict[str, UsageMeter] = OrderedDict()

    def __len__(self) -> int:
        """Number of meters in memory."""
        return len(self._keys) + len(self._addresses)

    def meter_of(self, tenant: Tenant) -> UsageMeter:
        """The meter of `tenant`.

        Raises:
            RequestError: RATE_LIMITED, the tenant is new and MAX_ADDRESSES meters are in use.
        """
        if tenant.kind == "key":
            meter = self._keys.get(tenant.name)
            if meter is None:
                # The operator bounds the number of keys, and so that of these meters.
                meter = self._keys[tenant.name] = UsageMeter(self._quota_of_keys, self._clock)
            return meter
        known = self._addresses.get(tenant.name)
        if known is not None:
            self._addresses.move_to_end(tenant.name)
            return known
        self._forget_idle()
        if len(self._addresses) >= self._max_addresses:
            raise RequestError(
                "RATE_LIMITED", "too many client addresses at this time", retry_after=60.0
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

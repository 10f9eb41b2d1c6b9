"""`TenantQuota`: limits on the resources of one tenant, and their `sessions=8` notation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """Limits on the resources that one tenant uses at one time or per hour; None is no limit.

    Args:
        sessions: open sessions at one time, including those in their grace period.
        steps_per_second: average rate of steps; bursts may have ten times as many.
        requests_per_second: average rate of requests of any type; bursts as for steps.
        cpu_seconds_per_hour: CPU time of the processes of all sessions.
        calls_per_hour: sub-calls of all sessions.
        uploaded_bytes: memory of uploads, as received and as decoded for sessions: a text of 100 MB
            counts once, and again while sessions begin with it. The default suffices for one
            upload of the largest size.
        connections: WebSockets and HTTP requests at one time.

    Raises:
        TypeError, ValueError: naming the field that is not a non-negative number.
    """

    sessions: int | None = None
    steps_per_second: float | None = None
    requests_per_second: float | None = None
    cpu_seconds_per_hour: float | None = None
    calls_per_hour: int | None = None
    uploaded_bytes: int | None = 2560 * _MIB
    connections: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{each.name} must be a number, not {type(value).__name__}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{each.name} must be at least 0 and finite, not {value}")


# For anonymous tenants, who are distinguished only by their addresses.
ADDRESS_QUOTA = TenantQuota(
    sessions=8,
    steps_per_second=50,
    requests_per_second=200,
    cpu_seconds_per_hour=1800,
    calls_per_hour=500,
    uploaded_bytes=512 * _MIB,
    connections=32,
)


def parse_quota(lines: Sequence[str], *, public: bool) -> TenantQuota | None:
    """Parse `NAME=VALUE` texts; None for no texts.

    Fields without a text keep their defaults: on a `public` server, those of ADDRESS_QUOTA.

    Raises:
        ValueError: naming the text.
    """
    if not lines:
        return None
    values = _numbers(_split(lines))
    try:
        return replace(ADDRESS_QUOTA if public else TenantQuota(), **values)
    except ValueError as error:
        raise ValueError(f"quota: {error}") from None


def _split(lines: Sequence[str]) -> dict[str, str]:
    if wrong := [each for each in lines if not each.partition("=")[2]]:
        raise ValueError(f"quota: {wrong[0]!r} is not NAME=VALUE, such as sessions=8")
    return dict(each.partition("=")[::2] for each in lines)


def _numbers(texts: Mapping[str, str]) -> dict[str, Any]:
    kinds = {
        field.name: int if "int" in str(field.type) else float for field in fields(TenantQuota)
    }
    if unknown := texts.keys() - kinds.keys():
        raise ValueError(f"quota: {min(unknown)!r} is not one of {', '.join(kinds)}")
    numbers: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            numbers[name] = kinds[name](text)
        except ValueError:
            whole = "a whole number" if kinds[name] is int else "a number"
            raise ValueError(f"quota: {name} must be {whole}, not {text!r}") from None
    return numbers

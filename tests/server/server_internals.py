"""Internals of a server that tests observe or set.

Tests reach them by these functions alone, so that a change of an internal name changes this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from repl_server.session import _MOST_WAITING as MOST_WAITING

if TYPE_CHECKING:
    import pytest

    from repl_server.json_codec import JSONCodec
    from repl_server.manager import SessionManager
    from repl_server.quotas import TokenBucket
    from repl_server.tenants import Tenant
    from tests.manual_clock import Clock

__all__ = [
    "MOST_WAITING",
    "cpu_bucket",
    "event_loop",
    "large_message_lock",
    "leave_readers_unwatched",
    "set_piece",
    "set_upload_clock",
]


def event_loop(manager: SessionManager) -> asyncio.AbstractEventLoop:
    """The event loop of a running server."""
    assert manager._sweeping is not None
    return manager._sweeping.get_loop()


def large_message_lock(codec: JSONCodec) -> asyncio.Lock:
    """The lock of the one large message that is parsed or serialized at a time."""
    return codec._one


def cpu_bucket(manager: SessionManager, tenant: Tenant) -> TokenBucket:
    """The token bucket of a tenant's CPU time."""
    return manager.quotas.meter_of(tenant)._buckets["cpu_seconds_per_hour"]


def set_piece(patch: pytest.MonkeyPatch, characters: int) -> None:
    """Set the number of characters that are counted at a time."""
    patch.setattr("repl_server.json_codec._PIECE", characters)


def leave_readers_unwatched(patch: pytest.MonkeyPatch) -> None:
    """No client is disconnected for reading slowly."""
    patch.setattr("repl_server.websocket_limits.BoundedWebSocket._watch_reader", lambda self: None)


def set_upload_clock(patch: pytest.MonkeyPatch, manager: SessionManager, clock: Clock) -> None:
    """Set the clock of a server's uploads."""
    patch.setattr(manager.uploads, "_clock", clock)


def set_silence(patch, seconds):
    """Let node files count as silent after so many seconds without a change."""
    patch.setattr("repl_env.client.nodes._SILENT_S", seconds)


def requests_in_progress(manager: SessionManager) -> int:
    """The number of requests whose bodies a server receives."""
    return len(manager.inbound._bodies)

"""Opening a session on an event loop: the loop waits for the session, and no thread does."""

from __future__ import annotations

from typing import Any

from ..sandbox import Sandbox
from ..session.core import Core
from ..session.drivers.loop_wait import readable
from ..types import Limits
from ..zygote.client.session_links import SessionLinks


async def acquire(sandbox: Sandbox, *arguments: Any) -> Core:
    """The core of a session as `Sandbox._core` makes it of `arguments`."""
    limits, make = sandbox._maker(*arguments)
    with sandbox._taking():
        core = make(await _taken(sandbox, limits))
    return sandbox._opened(core)


async def _taken(sandbox: Sandbox, limits: Limits) -> SessionLinks:
    """As `Supply.take`, of a session that has spoken."""
    supply = sandbox._supply
    for links in supply.ahead(limits):
        await _spoken(sandbox, links)
        if supply.arrives(links):
            return links
    links = supply.begin(limits)
    await _spoken(sandbox, links)
    return links


async def _spoken(sandbox: Sandbox, links: SessionLinks) -> None:
    if links.worker_pid or links.speaks:
        return
    try:
        # What does not come in time is told by whoever reads then.
        await readable(links.worker.fileno(), sandbox._zygote.seconds)
    except BaseException:
        sandbox._zygote.abandon(links)
        raise

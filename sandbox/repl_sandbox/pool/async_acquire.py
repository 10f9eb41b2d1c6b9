"""Acquire a session on an event loop: the loop waits for the session, and no thread does."""

from __future__ import annotations

from ..session.drivers.loop_wait import readable
from ..session_limits import Limits
from ..zygote.client.session_links import SessionLinks
from .template_process import AnyZygote
from .warm_pool import WarmPool


async def acquire_links(pool: WarmPool, zygote: AnyZygote, limits: Limits) -> SessionLinks:
    """Return the links of a session whose worker has sent its first message, as `WarmPool.take`."""
    for links in pool.prestarted(limits):
        await _first_message(zygote, links)
        if pool.await_ready(links):
            return links
    links = pool.begin(limits)
    await _first_message(zygote, links)
    return links


async def _first_message(zygote: AnyZygote, links: SessionLinks) -> None:
    if links.worker_pid or links.has_input:
        return
    try:
        # The next reader of the links reports a message that does not arrive in time.
        await readable(links.worker.fileno(), zygote.seconds)
    except BaseException:
        zygote.abandon(links)
        raise

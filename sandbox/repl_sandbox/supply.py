"""Where a sandbox has its sessions from: made ahead of time, or when they are asked for."""

from __future__ import annotations

from .pool import NoneReady, Pool
from .template import Template
from .types import Limits
from .zygote.links import Links


class Supply:
    """The links of one template's sessions. `started`: how many were, ready ones among them."""

    def __init__(self, template: Template, limits: Limits, ready: int, *, after: int = 0) -> None:
        """`ready`, `after`: as of `Pool`; those have `limits`.

        Raises:
            SandboxError: as of `Template.spawn`.
        """
        self._template, self._zygote, self._limits = template, template.zygote, limits
        self.started = 0
        self._pool = Pool(ready, self._spawn, after=after) if ready else None

    @property
    def ready(self) -> tuple[Links, ...]:
        """Those that were made and not taken yet."""
        return () if self._pool is None else self._pool.ready

    def has_ready(self, limits: Limits | None) -> bool:
        """Whether one with these limits, or the usual ones, was made ahead of time."""
        return bool(self._pool) and limits in (None, self._limits)

    def at_once(self, limits: Limits) -> Links:
        """Such a one, without waiting for anything.

        Raises:
            NoneReady: there is none.
            SandboxClosed: the template has ended.
        """
        if self._pool is not None and limits == self._limits:
            self._zygote.check_alive()  # those that wait end with it
            links = self._pool.take(lambda ready: not ready.ended)
            if links is not None:
                return links
        raise NoneReady

    def take(self, limits: Limits) -> Links:
        """One that was made ahead of time, or is being made.

        Raises:
            SandboxClosed, SandboxError: as of `Template.begin`.
        """
        if self._pool is not None and limits == self._limits:
            self._zygote.check_alive()
            while (links := self._pool.take_or_wait()) is not None:
                if not links.ended:
                    return links
                self._zygote.end(links)  # by others, out of memory for one, while it waited
        self.started += 1
        return self._template.begin(limits)

    def wants(self, limits: Limits) -> bool:
        """Whether a session with these limits, which is as it was made, should not be ended."""
        return self._pool is not None and limits == self._limits and self._pool.wants_more

    def give_back(self, links: Links) -> bool:
        """Have such a one serve another caller; False if nobody is served any more."""
        return self._pool is not None and self._pool.give_back(links)

    def close(self) -> tuple[Links, ...]:
        """Make no more; those that were left are the caller's to end."""
        return () if self._pool is None else self._pool.close()

    def _spawn(self) -> Links:
        self.started += 1
        return self._template.spawn(self._limits)

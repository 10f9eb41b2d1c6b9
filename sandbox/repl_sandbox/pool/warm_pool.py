"""Where a sandbox has its sessions from: begun ahead of time, or when they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ..errors import SandboxError
from ..types import Limits
from ..zygote.client.session_links import SessionLinks
from .ready_sessions import ReadySessions
from .template_process import TemplateProcess


class WarmPool:
    """The links of one template's sessions. `started`: how many were, ready ones among them."""

    def __init__(
        self, template: TemplateProcess, limits: Limits, ready: int, *, after: int = 0
    ) -> None:
        """`ready`, `after`: as of `ReadySessions`; those have `limits`.

        Raises:
            SandboxError: as of `TemplateProcess.spawn`.
        """
        self._template, self._zygote, self._limits = template, template.zygote, limits
        self.started = 0
        self._pool = ReadySessions(ready, self._begin, after=after) if ready else None
        self._fillers: list[threading.Thread] = []
        self._lock = threading.Lock()
        if self._pool is not None:
            self._begin_ahead(self._pool)

    def _begin_ahead(self, pool: ReadySessions) -> None:
        """Have the first sessions there: a jail that cannot be built is told now."""
        try:
            pool.fill()
            for links in pool:
                self._zygote.finish(links)
        except BaseException:
            for links in pool.close():
                links.close()
            raise

    @property
    def ready(self) -> tuple[SessionLinks, ...]:
        """Those that were begun ahead of time, are there and were not taken yet."""
        return tuple(links for links in self._pool or () if links.worker_pid or links.speaks)

    def ahead(self, limits: Limits) -> Iterator[SessionLinks]:
        """Sessions that were begun ahead of time, each to be waited for and given to `arrives`.

        Raises:
            SandboxClosed: the template has ended.
        """
        while self._pool is not None and limits == self._limits:
            self._zygote.check_alive()  # sessions that wait end with the zygote
            links = self._pool.take()
            if links is None:
                return
            yield links

    def arrives(self, links: SessionLinks) -> bool:
        """Wait until a session that was begun ahead of time is there; False if it never will be.

        Raises:
            SandboxClosed: the template has ended.
        """
        try:
            self._zygote.finish(links)
        except SandboxError:
            # The session that is begun in its place meets the error where it can be told.
            self._zygote.check_alive()
            return False
        if links.ended:
            self._zygote.abandon(links)  # others ended it while it waited: out of memory, say
            return False
        return True

    def take(self, limits: Limits) -> SessionLinks:
        """A session that was begun ahead of time and is there, or one that has just been begun.

        Raises:
            SandboxClosed, SandboxError: as of `TemplateProcess.begin`.
        """
        for links in self.ahead(limits):
            if self.arrives(links):
                return links
        return self.begin(limits)

    def begin(self, limits: Limits) -> SessionLinks:
        """A session that has just been begun; raises as `TemplateProcess.begin`."""
        self.started += 1
        return self._template.begin(limits)

    def refill(self) -> None:
        """Begin others in place of those that were taken."""
        if self._pool is None or not self._pool.lacks:
            return
        if self._zygote.hears:
            self._fill(self._pool)
        else:
            filler = threading.Thread(target=self._fill, args=(self._pool,), name="repl-fill")
            with self._lock:
                filler.start()
                self._fillers = [each for each in self._fillers if each.is_alive()] + [filler]

    def _fill(self, pool: ReadySessions) -> None:
        try:
            pool.fill()
        # Boundary: the caller has a session. The next one begins its own, and meets the error.
        except Exception:  # noqa: BLE001
            return

    def wants(self, limits: Limits) -> bool:
        """Whether a session with these limits, which is as it was made, should not be ended."""
        return self._pool is not None and limits == self._limits and self._pool.wants_more

    def give_back(self, links: SessionLinks) -> bool:
        """Have such a one serve another caller; False if nobody is served any more."""
        return self._pool is not None and self._pool.give_back(links)

    def close(self) -> tuple[SessionLinks, ...]:
        """Make no more; those that were left are the caller's to end.

        One that is being begun in a thread is waited for: its container is gone when this returns.
        """
        left = () if self._pool is None else self._pool.close()
        with self._lock:
            fillers = self._fillers
        for filler in fillers:
            filler.join()
        return left

    def _begin(self) -> SessionLinks:
        return self.begin(self._limits)

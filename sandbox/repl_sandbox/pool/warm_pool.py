"""`WarmPool`: the source of a sandbox's sessions: started ahead of time, or on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ..errors import SandboxError
from ..session_limits import Limits
from ..zygote.client.session_links import SessionLinks
from .ready_sessions import ReadySessions
from .template_process import TemplateProcess


class WarmPool:
    """The links of one template's sessions. `started`: the number of all, ready ones included."""

    def __init__(
        self, template: TemplateProcess, limits: Limits, ready: int, *, after: int = 0
    ) -> None:
        """`ready`, `after`: as of `ReadySessions`; ready sessions have `limits`.

        Raises:
            SandboxError: as of `TemplateProcess.spawn`.
        """
        self._template, self._zygote, self._limits = template, template.zygote, limits
        self.started = 0
        self._pool = ReadySessions(ready, self._begin, after=after) if ready else None
        self._fillers: list[threading.Thread] = []
        self._lock = threading.Lock()
        if self._pool is not None:
            self._prestart(self._pool)

    def _prestart(self, pool: ReadySessions) -> None:
        """Start the first sessions and wait for them: a jail that cannot be built is an error
        now.
        """
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
        """The sessions that are ready to be taken."""
        return tuple(links for links in self._pool or () if links.worker_pid or links.has_input)

    def prestarted(self, limits: Limits) -> Iterator[SessionLinks]:
        """The sessions that were started ahead of time, each to be waited for and passed to
        `await_ready`.

        Raises:
            SandboxClosed: the template has ended.
        """
        while self._pool is not None and limits == self._limits:
            self._zygote.check_alive()  # waiting sessions end with the zygote
            links = self._pool.take()
            if links is None:
                return
            yield links

    def await_ready(self, links: SessionLinks) -> bool:
        """Wait until a session that was started ahead of time is ready; False if it never will be.

        Raises:
            SandboxClosed: the template has ended.
        """
        try:
            self._zygote.finish(links)
        except SandboxError:
            # The session that is started in its place meets the error, and can report it.
            self._zygote.check_alive()
            return False
        if links.ended:
            self._zygote.abandon(links)  # it was killed while it waited, for example for memory
            return False
        return True

    def take(self, limits: Limits) -> SessionLinks:
        """Return a ready session that was started ahead of time, or one that was just requested.

        Raises:
            SandboxClosed, SandboxError: as of `TemplateProcess.begin`.
        """
        for links in self.prestarted(limits):
            if self.await_ready(links):
                return links
        return self.begin(limits)

    def begin(self, limits: Limits) -> SessionLinks:
        """Request a session; raises as `TemplateProcess.begin`."""
        self.started += 1
        return self._template.begin(limits)

    def refill(self) -> None:
        """Start sessions in place of those that were taken."""
        if self._pool is None or not self._pool.is_short:
            return
        if self._zygote.accepts_requests:
            self._fill(self._pool)
        else:
            filler = threading.Thread(target=self._fill, args=(self._pool,), name="repl-fill")
            with self._lock:
                filler.start()
                self._fillers = [each for each in self._fillers if each.is_alive()] + [filler]

    def _fill(self, pool: ReadySessions) -> None:
        try:
            pool.fill()
        # Boundary: the caller has a session. The next caller starts its own, and meets the error.
        except Exception:  # noqa: BLE001
            return

    def accepts(self, limits: Limits) -> bool:
        """Return whether an unused session with these limits should be kept."""
        return self._pool is not None and limits == self._limits and self._pool.wants_more

    def give_back(self, links: SessionLinks) -> bool:
        """Keep an unused session for another caller; False if the pool is closed."""
        return self._pool is not None and self._pool.give_back(links)

    def close(self) -> tuple[SessionLinks, ...]:
        """Start no more sessions; the caller ends those that are returned.

        A session that is being started in a thread is waited for: its container is gone when this
        returns.
        """
        unused = () if self._pool is None else self._pool.close()
        with self._lock:
            fillers = self._fillers
        for filler in fillers:
            filler.join()
        return unused

    def _begin(self) -> SessionLinks:
        return self.begin(self._limits)

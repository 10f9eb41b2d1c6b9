"""`SessionLifecycle`: starts, counts and ends the sessions of one sandbox."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

from ..errors import IsolationError, SandboxClosed, SandboxError
from ..fair_share.fair_scheduler import FairScheduler
from ..limits.watchdog import Watchdog
from ..session.core import Core
from ..session.drivers.session_handle import SessionOwner
from ..session_limits import Limits
from ..types import Statistics
from ..zygote.client.session_links import SessionLinks
from .core_factory import CoreFactory
from .session_limiter import SessionLimiter
from .template_process import TemplateProcess
from .warm_pool import WarmPool

# A call returns within milliseconds of its session's end, unless its `on_output` hangs.
_LEAVE_TIMEOUT = 5.0


class SessionLifecycle:
    """The sessions of `template`, at most `max_sessions` of them, each with at most `branches`.

    `close` closes the sandbox; it is called when the last session of a retired sandbox ends. The
    reference to it is weak, so that a dropped sandbox is freed at once. After a fork the child has
    a copy of this object, which must not touch the parent's sessions.
    """

    def __init__(
        self,
        template: TemplateProcess,
        pool: WarmPool,
        max_sessions: int | None,
        branches: int,
        close: Callable[[], None],
    ) -> None:
        self._pid = os.getpid()
        self._zygote, self._budget = template.zygote, template.budget
        self._branches, self._close = branches, weakref.WeakMethod(close)
        self._limiter = SessionLimiter(max_sessions)
        shares = FairScheduler(charged=self._budget.fair_share)
        self.pool = pool
        self.watchdog = Watchdog(self._budget.template_memory, shares)
        self.closed = self.retired = False

    def __len__(self) -> int:
        return len(self._limiter)

    @property
    def is_unusable(self) -> bool:
        """True if the sandbox is closed, or belongs to the process that forked this one."""
        return self.closed or self.in_forked_child

    @property
    def in_forked_child(self) -> bool:
        """True if this process was forked from the one that made the sandbox."""
        return os.getpid() != self._pid

    def statistics(self) -> Statistics:
        """The numbers of sessions that are open, ready and were started."""
        return Statistics(len(self), len(self.pool.ready), self.pool.started)

    def check_alive(self) -> None:
        """Raise SandboxClosed if the sandbox is closed."""
        if self.is_unusable:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def check_accepts_sessions(self) -> None:
        """Raise SandboxClosed if the sandbox starts no more sessions."""
        self.check_alive()
        if self.retired:
            raise SandboxClosed("the sandbox is retired: it closes with the last of its sessions")

    # ── starting ──────────────────────────────────────────────────────────────────────────────

    def start(self, limits: Limits, make: CoreFactory) -> Core:
        """Start a session with `limits`, and wait until it is ready."""
        with self.starting():
            core = self.finish(make, self.pool.take(limits))
        return self.register(core)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """A block that starts a session, which counts as open from here on."""
        self.check_accepts_sessions()
        try:
            with self._limiter.reserved():
                yield
        except BaseException:
            self.close_if_unused()
            raise

    def finish(self, make: CoreFactory, links: SessionLinks) -> Core:
        """Make the core of a session whose start was requested, and wait for the session."""
        try:
            # The core is made while the zygote is busy with the session.
            core = make(links)
        except BaseException:
            self._zygote.abandon(links)
            raise
        try:
            self._zygote.finish(links)
            core.ready()
        except BaseException:
            core.close()
            raise
        return core

    def register(self, core: Core) -> Core:
        """Count a session among those of the sandbox, and start the next one of the warm pool."""
        self._add(core)
        if self.closed:  # `close` may have listed the sessions before this one was among them
            self.end(core)
            self.check_alive()
        self.pool.refill()
        return core

    def _add(self, core: Core) -> None:
        self._limiter.fill(core)
        self.watchdog.add(core)

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def _reserve_branch(self, core: Core) -> None:
        """Reserve the resources of one more branch of a session."""
        self.check_alive()
        with self._limiter.reserved():
            self._join_family(core)

    def _join_family(self, core: Core) -> None:
        try:
            adjust = self._budget.adjust(core.links, core.limits)
            joined = core.links.family.join(1 + self._branches, adjust)
        except OSError as error:
            raise SandboxError(f"no resources for a branch: {error.strerror}") from error
        if not joined:
            raise SandboxError(
                f"branches={self._branches} branches of the session are open; close one first, or "
                "use Sandbox(branches=...) with a larger number"
            )

    def _release_branch(self, core: Core) -> None:
        """Release what `_reserve_branch` reserved, for a branch that could not be made."""
        self._limiter.give_back()
        if core.links.family.leave():
            # The session was closed meanwhile, and left this call to end its processes.
            self._zygote.kill(core.links)
        else:
            self._adjust_limits(core)
        self.close_if_unused()

    def _adjust_limits(self, core: Core) -> None:
        # Cgroups of version 1 refuse a limit below the current use; the watchdog enforces it then.
        with contextlib.suppress(OSError, IsolationError):
            core.links.family.adjust(self._budget.adjust(core.links, core.limits))

    # ── ending ────────────────────────────────────────────────────────────────────────────────

    def owner(self, sandbox: object) -> SessionOwner:
        """The functions by which a session handle ends its session, or makes a branch.

        The handle keeps `sandbox` alive.
        """
        return SessionOwner(
            sandbox,
            self.end,
            self._end_at_once,
            self._end_soon,
            self._release_ended,
            self._add,
            self._reserve_branch,
            self._release_branch,
        )

    def end(self, core: Core) -> None:
        """End a session, or return it to the warm pool."""
        if self.in_forked_child:
            # The child lacks the threads that may hold the locks, and the links are the parent's:
            # nothing may be sent on them.
            core.links.close()
            return
        try:
            if not self._return_to_pool(core) and self._limiter.leave(core):
                self._end_removed(core)
        finally:
            self.close_if_unused()

    def _end_at_once(self, core: Core) -> bool:
        """Return an untouched session to the warm pool; False if the session is not such a one."""
        done = self._return_to_pool(core)
        if done:
            self._close_in_thread()
        return done

    def _end_soon(self, core: Core) -> int | None:
        """As `SessionOwner.end_soon`, unless the session has branches or a call is in progress."""
        if core.busy.locked() or core.links.family.branches != 1 or self.in_forked_child:
            return None
        core.io.closing = True
        pidfd = self._zygote.request_end(core.links)
        if pidfd is None:
            return None
        if not self._limiter.leave(core):  # another thread ends the session, and waits for its end
            os.close(pidfd)
            return None
        self.watchdog.remove(core)
        core.links.family.leave()
        return pidfd

    def _release_ended(self, core: Core) -> None:
        """Release a session that `_end_soon` ended and that is gone."""
        core.release_resources()
        self._close_in_thread()

    def _return_to_pool(self, core: Core) -> bool:
        """Return an untouched session to the warm pool, if the pool wants one like it."""
        ends = self.is_unusable or self.retired
        if ends or not self.pool.accepts(core.limits):
            return False
        links = core.take_untouched_links()
        if links is None:
            return False
        was_open = self._limiter.leave(core)
        self.watchdog.remove(core)
        # Otherwise the sandbox was closed meanwhile, and the session ends with it.
        if not was_open or not self.pool.give_back(links):
            links.close()
        return True

    def _end_removed(self, core: Core) -> None:
        core.io.closing = True
        self.watchdog.remove(core)
        try:
            if core.links.family.leave():
                self._zygote.kill(core.links)
            else:
                core.links.end_branch()
                self._adjust_limits(core)
                core.links.group = None  # the remaining branches use it
        finally:
            # A call in another thread or task sees the session's end and returns first: its
            # descriptors must not be closed, and reused by others, under it. A caller that ends
            # the session during its own call (in `on_output` or a signal handler) would wait for
            # itself.
            own = core.holder == threading.get_ident()
            if not own and core.busy.acquire(timeout=_LEAVE_TIMEOUT):
                core.busy.release()
            core.release_resources()

    def close_if_unused(self) -> None:
        """Close the sandbox if it is retired and has no session."""
        if self.retired and self._limiter.is_unused and (close := self._close()):
            close()

    def _close_in_thread(self) -> None:
        """As `close_if_unused`, without waiting."""
        if self.retired and self._limiter.is_unused and (close := self._close()):
            threading.Thread(target=close, name="repl-close").start()

    def end_all(self) -> None:
        """End every session and the warm pool. The sandbox is marked as closed before."""
        # Every callback runs, the last one first, even if another raises.
        with contextlib.ExitStack() as closing:
            for core in self._limiter:
                closing.callback(self.end, core)
            for links in self.pool.close():
                closing.callback(self._zygote.end, links)
            closing.callback(self.watchdog.close)

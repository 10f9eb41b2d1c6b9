"""The sessions of one sandbox: counted, started ahead of time or on demand, and ended.

`SessionLifecycle` is the part that a `Sandbox` has; `WarmPool` keeps ready sessions for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

from ..errors import IsolationError, SandboxClosed, SandboxError
from ..options import SandboxSettings
from ..session.calls import FunctionExecutor
from ..session.core import Core
from ..session.handle import SessionOwner
from ..session.host_functions import HostCallable, HostFunction, check
from ..session.running_cell import Accept
from ..types import Answers, Limits, Statistics, check_seed
from .fair_share import FairScheduler
from .links import SessionLinks
from .template import ResourceBudget, TemplateProcess
from .watchdog import Watchdog

# `CoreFactory`: makes the core of a session on the session's links.

CoreFactory: TypeAlias = Callable[[SessionLinks], Core]


class SessionArguments(NamedTuple):
    """The arguments of `Sandbox.session`."""

    host: Mapping[str, HostCallable | HostFunction] | None
    limits: Limits | None
    seed: int | None
    answers: Answers | None
    on_answer: Accept | None


def core_factory(
    settings: SandboxSettings,
    budget: ResourceBudget,
    executor: FunctionExecutor,
    arguments: SessionArguments,
    *,
    shared: Collection[str],
    preloads: bool,
) -> tuple[Limits, CoreFactory]:
    """Check the arguments; return the limits of the session, and the factory of its core.

    `shared`: names of shared objects. `preloads`: whether the template has imported modules.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    functions, answers = check(arguments.host), arguments.answers
    if clash := functions.names.intersection(shared):
        raise ValueError(
            f"host: {', '.join(sorted(clash))} is the name of a shared object; rename the function"
        )
    limits = settings.check_limits(arguments.limits)
    if answers not in (None, "strict", "compatible"):
        raise ValueError(f"answers must be None, 'strict' or 'compatible', not {answers!r}")
    return limits, partial(
        Core,
        limits=limits,
        rlimits=budget.rlimits(limits),
        registry=functions,
        executor=executor,
        seed=check_seed(arguments.seed),
        answers=answers,
        on_answer=arguments.on_answer,
        preloaded=preloads,
        snapshots=budget.snapshots,
        engine_processes=budget.own_processes - 1,
    )


# `ReadySessions`: sessions that start ahead of time, unconfigured, so that acquiring one costs a
# round trip.

# The number of returned sessions that are kept besides those started ahead: 3 MB each. As many
# clients can come and go at the same time without a new session.
_MAX_RETURNED = 8


class ReadySessions:
    """Up to `size` sessions that were requested and not waited for; `fill` requests the missing
    ones.

    Starting a session is one message to the zygote, so no thread does it: the caller that takes a
    session requests the next one.
    """

    def __init__(self, size: int, begin: Callable[[], SessionLinks], *, after: int = 0) -> None:
        """`after`: the number of sessions to be taken before the first is started ahead of time."""
        self._size = size
        self._begin = begin
        self._lock = threading.Lock()
        self._sessions: deque[SessionLinks] = deque()
        self._starting = 0
        self._skip = after
        self._closed = False

    def __iter__(self) -> Iterator[SessionLinks]:
        return iter(tuple(self._sessions))

    def take(self) -> SessionLinks | None:
        """The session that was started first; None if there is none."""
        with self._lock:
            self._skip = max(0, self._skip - 1)
            return self._sessions.popleft() if self._sessions else None

    def fill(self) -> None:
        """Start the missing sessions. Raises what `begin` raises."""
        while self._claim_one():
            try:
                links = self._begin()
            except BaseException:
                with self._lock:
                    self._starting -= 1
                raise
            with self._lock:
                self._starting -= 1
                is_open = not self._closed
                if is_open:
                    self._sessions.append(links)
            if not is_open:
                links.close()

    @property
    def is_short(self) -> bool:
        """True if sessions are missing."""
        missing = self._size - len(self._sessions) - self._starting
        return missing > 0 and not (self._closed or self._skip)

    @property
    def wants_more(self) -> bool:
        """True if a session that was acquired, and not used, is kept for another caller."""
        return len(self._sessions) < self._size + _MAX_RETURNED

    def give_back(self, links: SessionLinks) -> bool:
        """Keep the session, the first to be taken next, because it is ready; False once this is
        closed.
        """
        with self._lock:
            if not self._closed:
                self._sessions.appendleft(links)
            return not self._closed

    def close(self) -> tuple[SessionLinks, ...]:
        """Start no more sessions; return the remaining ones."""
        with self._lock:
            self._closed = True
            unused = tuple(self._sessions)
            self._sessions.clear()
        return unused

    def _claim_one(self) -> bool:
        with self._lock:
            claimed = self.is_short
            self._starting += claimed
        return claimed


# `SessionLimiter`: the open sessions of a sandbox, and the limit of their number.


class SessionLimiter:
    """At most `max_sessions` open sessions and branches; None: any number.

    Iterating gives the open ones.

    A session counts before it is made, because others may be made at the same time.
    """

    def __init__(self, max_sessions: int | None) -> None:
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._open: dict[int, Core] = {}
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Core]:
        return iter(list(self._open.values()))

    @property
    def is_unused(self) -> bool:
        """True if no session is open or being made."""
        with self._lock:
            return not self._open and not self._reserved

    def take(self) -> None:
        """Count a session that will be made; raise SandboxError if the limit is reached."""
        with self._lock:
            if (
                self._max_sessions is not None
                and len(self._open) + self._reserved >= self._max_sessions
            ):
                raise SandboxError(
                    f"max_sessions={self._max_sessions} sessions are open; close one first"
                )
            self._reserved += 1

    def give_back(self) -> None:
        """Stop counting a session that could not be made."""
        with self._lock:
            self._reserved -= 1

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """As `take`; given back if the block raises."""
        self.take()
        try:
            yield
        except BaseException:
            self.give_back()
            raise

    def fill(self, core: Core) -> None:
        """Add the session that was counted before; it is open now."""
        with self._lock:
            self._reserved -= 1
            self._open[id(core)] = core

    def leave(self, core: Core) -> bool:
        """Remove a session; return whether it was among the open ones."""
        with self._lock:
            return self._open.pop(id(core), None) is not None


# `WarmPool`: the source of a sandbox's sessions: started ahead of time, or on demand.


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


# `SessionLifecycle`: starts, counts and ends the sessions of one sandbox.

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

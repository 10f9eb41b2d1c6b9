"""`Sandbox`: a warm template that sessions are forked from."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn

from . import backends
from .backends import container_settings, sandbox_arguments
from .backends.container_settings import ContainerLimits, ContainerSettings, Inside, has_own_kernel
from .backends.isolation_tiers import acceptable, strongest
from .backends.sandbox_arguments import Grouping, RecoveryMode, Tier
from .errors import CheckpointError, IsolationError, SandboxClosed, SandboxError
from .fair_share.fair_scheduler import FairScheduler
from .limits.watchdog import Watchdog
from .pool.session_limiter import SessionLimiter
from .pool.template_process import TemplateProcess
from .pool.warm_pool import WarmPool
from .protocol.checkpoint_manifest import Checkpoint, parse
from .session.cells.cell_answers import Accept
from .session.core import Core
from .session.drivers.blocking import Session
from .session.drivers.session_handle import SessionOwner
from .session.host_functions.function_executor import FunctionExecutor, LoopFunctionExecutor
from .session.host_functions.function_registry import HostCallable, check
from .session.host_functions.host_function import HostFunction
from .types import Answers, Limits, Policy, Statistics, check_seed
from .zygote.client.session_links import SessionLinks
from .zygote.client.zygote_handle import ZygoteHandle
from .zygote.client.zygote_per_session import ZygotePerSession
from .zygote.client.zygote_process import ZygoteLauncher

if TYPE_CHECKING:
    from .zygote.client.shared_objects import Shareable, SharedObjects

# Who has opened so many sessions on the same objects is likely to open another.
_ONE_OF_MANY = 2
# A call leaves within milliseconds of its session's end, unless its `on_output` hangs.
_LEAVE_TIMEOUT = 5.0


NO_PICKLE = "cannot be pickled: it is a live process; make one where it is used"


class Sandbox:
    """A warm, sealed template, and the sessions forked from it. Thread-safe; a context manager.

    `python`: the interpreter (default: this one; in a container `python3`). `preload`: modules
    imported once, in the template. `mounts`: {path inside: path of the host}, a file or a
    directory, shown read-only; links in the host's path are resolved now and never again; started
    by root, sessions are users of their own and read there what everybody may; only tiers "jailed"
    and "container" can show a path at another place. `limits`: of each session. `policy`: which
    Python its cells may use, all of it by default; no policy is a wall. `isolation`: a tier,
    "jailed", "container", "confined" or "process", or "auto" for the strongest of "jailed" and
    "confined" that works here; `require`: the weakest tier to accept (default: the one named; under
    "auto" "confined"). `refusals` says why stronger ones did not work. `ready`: sessions made ahead
    of time. `max_sessions`: how many may be open at once. `cgroup`: "auto" puts each jailed session
    into a cgroup where this process may make them, "require" raises where it may not, "off" never.
    `recovery`: "snapshot" keeps a waiting copy of each session's process, which takes over when
    that dies in a cell; under "restart" what follows is empty. `history`: how many cells `rollback`
    can undo; each takes one more waiting copy. `branches`: how many branches of a session may be
    open at once; the three or four processes of each count among `Limits.processes`. `hash_seed`:
    of hashes of text and bytes, hence of the order of sets, the same in every session; None draws
    one for each template. `yielding`: sessions that have used much CPU time lately give way to all
    other processes while there are too few processors, as far as the system lets this process
    arrange that, and those with more than eight busy processes are stopped now and then
    (docs/design/giving-way.md). `image`, `runtime`, `container_limits`: of tier "container" alone:
    the image, with CPython 3.11 or later; the daemon's runtime, its default for None; what the
    container may use with all its sessions. `per_session`: each session has a container of its own;
    None: where the runtime has a kernel of its own.
    `inside`: "jailed" has sessions jailed in their container, which takes from the container what
    forbids that (docs/design/tiers.md).

    Raises:
        IsolationError: the tier cannot be had here; says which step failed and what helps.
        SandboxError: the interpreter does not start, or lacks a module of `preload` or one that
            the policy is built on.
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        *,
        python: str | None = None,
        preload: Sequence[str] = (),
        mounts: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        isolation: Tier | Literal["auto"] = "auto",
        require: Tier | None = None,
        ready: int = 0,
        max_sessions: int | None = None,
        cgroup: Grouping = "auto",
        recovery: RecoveryMode = "snapshot",
        history: int = 1,
        branches: int = 16,
        hash_seed: int | None = None,
        yielding: bool = False,
        image: str | None = None,
        runtime: str | None = None,
        container_limits: ContainerLimits | None = None,
        per_session: bool | None = None,
        inside: Inside = "confined",
    ) -> None:
        self._limits = sandbox_arguments.check_limits(limits) or Limits()
        states = sandbox_arguments.check_states(recovery, history)
        self._branches = branches
        policy = sandbox_arguments.check_policy(policy)
        tiers = sandbox_arguments.check_grouping(cgroup, acceptable(isolation, require))
        container_settings.check(
            *(isolation, image, runtime, container_limits),
            per_session=per_session,
            inside=inside,
            yielding=yielding,
        )
        per_session = per_session if per_session is not None else has_own_kernel(runtime)
        self._container_limits = container_limits
        self._check_room(self._limits)
        preload, mounts = (
            sandbox_arguments.check_preload(preload),
            sandbox_arguments.check_mounts(mounts or {}),
        )
        sandbox_arguments.check_counts(python, ready, max_sessions, branches)
        self._mounts = mounts
        self._max_sessions, self._ready, self._ready_after = max_sessions, ready, 0
        # Of numpy no policy knows but the one that lets everything through.
        self._arrays = policy is None or policy.language != "restricted"
        self._shared: dict[str, Shareable] = {}
        sandbox_arguments.check_hash_seed(hash_seed)
        self._policy = policy
        # A policy brings modules as well, among them `random`, whose state is then every session's.
        self._preloaded = bool(preload) or policy is not None
        self._begin_life()

        launch: Callable[[], ZygoteLauncher] | None = None
        if image is not None:
            settings = ContainerSettings(
                image, runtime, container_limits, python, mounts, per_session, inside
            )
            launch = partial(backends.container, settings)
            mounts = {inside: inside for inside in mounts}  # as the container is shown them

        def start(tier: str) -> TemplateProcess:
            def zygote() -> ZygoteHandle:
                return ZygoteHandle(python, preload, mounts, policy, tier, hash_seed, launch)

            return TemplateProcess.of(
                partial(ZygotePerSession, zygote) if per_session else zygote,
                tier,
                cgroup,
                self._limits,
                states,
                yielding=yielding,
            )

        template, self.refusals = strongest(tiers, start)
        self._live_on(template)

    @property
    def limits(self) -> Limits:
        """Those of its sessions, but for such as are given others."""
        return self._limits

    @property
    def mounts(self) -> Mapping[str, str]:
        """The paths of the host that its sessions are shown, by their paths inside."""
        return MappingProxyType(self._mounts)

    def _begin_life(self) -> None:
        """What a sandbox has of its own, whatever its settings are: nothing yet."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._places = SessionLimiter(self._max_sessions)
        self._closed = self._retired = False
        self._executor = FunctionExecutor()
        self._loop_executor = LoopFunctionExecutor()
        self._parent: Sandbox | None = None
        self._children: weakref.WeakSet[Sandbox] = weakref.WeakSet()

    def _live_on(self, template: TemplateProcess) -> None:
        """Have sessions of `template`, which is this sandbox's own from here on."""
        self._template, self._zygote = template, template.zygote
        self._allowance = allowance = template.allowance
        shares = FairScheduler(charged=allowance.yielding)
        self._watchdog = Watchdog(allowance.template_memory, shares)
        try:
            self._supply = WarmPool(template, self._limits, self._ready, after=self._ready_after)
        except BaseException:
            template.close()
            raise

    def __repr__(self) -> str:
        away = self._closed or os.getpid() != self._pid
        condition = "closed" if away else f"open, sessions: {len(self._places)}"
        return f"<{type(self).__name__} {self._zygote.tier}, {condition}>"

    @property
    def shared(self) -> Mapping[str, Shareable]:
        """The objects that its sessions begin with, by name, as they were given."""
        return MappingProxyType(self._shared)

    def with_shared(self, /, **objects: Shareable) -> Sandbox:
        """A sandbox with this one's settings, whose sessions begin with `objects` as variables.

        A text, bytes, a JSON value or a numpy array (of plain data) is copied once, into a template
        that is forked from this one's; sessions share its memory until they write to it. What a
        session does with a variable, no other sees. Closing this sandbox closes that one first.
        It has as many sessions ready as this one; where that is none, it makes the next one ahead
        of time once it was asked for two.

        Raises:
            TypeError, ValueError: naming the object: it is of another kind, JSON cannot carry it,
                its name is no variable's, or all are larger than 16 GiB.
            SandboxClosed, SandboxError: this sandbox is closed, or there is no room.
        """
        from .zygote.client import shared_objects  # who shares nothing does without it

        self._check_taking()
        with shared_objects.pack(objects, arrays=self._arrays) as parcel:
            if self._ready:
                return self._child(parcel, objects, self._ready, after=self._ready_after)
            return self._child(parcel, objects, 1, after=_ONE_OF_MANY)

    def with_parcel(self, parcel: SharedObjects) -> Sandbox:
        """`with_shared` of objects that were packed before, perhaps by another process.

        What a parcel says is believed: it must come from
        `repl_sandbox.zygote.client.shared_objects`. It stays the
        caller's to close. `shared` has `PACKED` in place of the objects. No session is made ahead
        of time, whatever `ready` is.

        Raises:
            SandboxClosed, SandboxError: as `with_shared`.
        """
        from .zygote.client.shared_objects import PACKED

        self._check_taking()
        return self._child(parcel, dict.fromkeys(parcel.names, PACKED), 0)

    def _child(
        self, parcel: SharedObjects, objects: Mapping[str, Shareable], ready: int, *, after: int = 0
    ) -> Sandbox:
        child = object.__new__(type(self))
        # Every setting, whichever there are; then what cannot be another's.
        child.__dict__.update(self.__dict__)
        child._begin_life()
        child._parent = self  # which would end with its last reference
        child._shared = {**self._shared, **objects}
        child._preloaded = self._preloaded or parcel.arrays
        child._ready, child._ready_after = ready, after
        child._live_on(self._template.fork(parcel))
        with self._lock:
            if not self._closed:
                self._children.add(child)
                return child
        child.close()
        raise SandboxClosed("the sandbox was closed meanwhile")

    def session(
        self,
        *,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        answers: Answers | None = None,
        on_answer: Accept | None = None,
    ) -> Session:
        """A new session.

        `host`: {name: function}, sync or async, callable from the session with JSON arguments; it
        returns JSON. An `HostFunction` in its place says more of how it looks there. `limits`:
        default
        those of the sandbox. `seed`: for `random` and numpy. `answers`: put FINAL,
        FINAL_VAR, SUBMIT, final_answer and the dict `answer` in the namespace; "compatible" also
        takes printed forms (see `Answer`). `on_answer` is called with each answer; its ValueError
        refuses the answer. Where that takes long it may be a coroutine function: the cell waits for
        it as for a call to the host.

        Raises:
            SandboxClosed, SandboxError: the sandbox is closed or its template was ended, or
                `max_sessions` are open.
            TypeError, ValueError: naming the argument.
        """
        core = self._core(self._executor, host, limits, seed, answers, on_answer)
        return Session(core, self._home)

    def restore(
        self,
        data: bytes,
        *,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        answers: Answers | None = None,
        on_answer: Accept | None = None,
        timeout: float | None = None,
        timeout_s: float | None = None,
    ) -> Session:
        """A new session with the namespace that `Session.checkpoint` saved.

        Loading runs what `data` says, as a cell runs: in the session, for at most `timeout`
        seconds, within its limits. `files`: {path: content} put into the workspace before, for
        modules that are imported from there. The others are as in `session`.
        `Session.missing` lists what was not saved, or did not load.

        Raises:
            CheckpointError: `data` is no checkpoint, is damaged, is of another version of Python,
                or did not load; or this sandbox has a language policy, which it would pass by.
            TypeError, ValueError: naming the argument.
        """
        saved = self._readable(parse(data))
        session = self.session(host=host, limits=limits, answers=answers, on_answer=on_answer)
        try:
            session.files.put_all(files or {})
            session._load(saved, timeout, timeout_s)
        except BaseException:
            session.close()
            raise
        return session

    def _readable(self, saved: Checkpoint) -> Checkpoint:
        """`saved` if the interpreter of this sandbox can load it; else CheckpointError."""
        if self._policy is not None:
            raise CheckpointError(
                f"policy: a checkpoint is code that language={self._policy.language!r} never sees; "
                "restore it in a sandbox without a policy"
            )
        theirs = saved.manifest.implementation, saved.manifest.python.split(".")[:2]
        version, implementation = self._zygote.interpreter
        if theirs != (implementation, version.split(".")[:2]):
            raise CheckpointError(
                f"the checkpoint is of {saved.manifest.implementation:.40} "
                f"{saved.manifest.python:.40}, and the sandbox runs {implementation} {version}: "
                "code can only be loaded by the same minor version"
            )
        return saved

    def statistics(self) -> Statistics:
        """How many sessions are open, ready and were started."""
        return Statistics(len(self._places), len(self._supply.ready), self._supply.started)

    def close(self) -> None:
        """End all sessions and the template. Idempotent."""
        if os.getpid() != self._pid:
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # Every one of these is called, the last first, whatever another raises.
        with contextlib.ExitStack() as closing:
            closing.callback(self._template.close)
            for child in list(self._children):
                closing.callback(child.close)
            closing.callback(self._loop_executor.close)
            closing.callback(self._executor.close)
            for core in self._places:
                closing.callback(self._end, core)
            for links in self._supply.close():
                closing.callback(self._zygote.end, links)
            closing.callback(self._watchdog.close)

    def retire(self) -> None:
        """Begin no more sessions, and close when the last one that is open is closed. Idempotent.

        Those that are open go on, and may have branches. Without any, this is `close`.
        """
        self._retired = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        """Close it, if it is retired and nobody is in it any more."""
        if self._retired and self._places.free:
            self.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Sandbox {NO_PICKLE}")

    # ── making and ending sessions ────────────────────────────────────────────────────────────

    def _core(
        self,
        executor: FunctionExecutor,
        host: Mapping[str, HostCallable | HostFunction] | None,
        limits: Limits | None,
        seed: int | None,
        answers: Answers | None,
        on_answer: Accept | None,
    ) -> Core:
        """A session's core, waited for."""
        limits, make = self._maker(executor, host, limits, seed, answers, on_answer)
        with self._taking():
            core = make(self._supply.take(limits))
        return self._opened(core)

    def _maker(
        self,
        executor: FunctionExecutor,
        host: Mapping[str, HostCallable | HostFunction] | None,
        limits: Limits | None,
        seed: int | None,
        answers: Answers | None,
        on_answer: Accept | None,
    ) -> tuple[Limits, Callable[[SessionLinks], Core]]:
        """The limits that are asked for, and the function that makes a core of such links.

        It waits until the session is there.
        """
        offers = check(host)
        if self._shared and (clash := self._shared.keys() & offers.names):
            taken = ", ".join(sorted(clash))
            raise ValueError(f"host: {taken} is the name of a shared object")
        limits = sandbox_arguments.check_limits(limits) or self._limits
        self._check_room(limits)
        if answers not in (None, "strict", "compatible"):
            raise ValueError(f"answers must be None, 'strict' or 'compatible', not {answers!r}")
        core = partial(
            Core,
            limits=limits,
            rlimits=self._allowance.rlimits(limits),
            offers=offers,
            executor=executor,
            seed=check_seed(seed),
            answers=answers,
            on_answer=on_answer,
            preloaded=self._preloaded,
            states=self._allowance.states,
            ours=self._allowance.own_processes - 1,
        )
        return limits, partial(self._made, core)

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        """A block that makes a session, which has a place from here on."""
        self._check_taking()
        try:
            with self._places.taken():
                yield
        except BaseException:
            self._close_if_left()
            raise

    def _made(self, make: Callable[[SessionLinks], Core], links: SessionLinks) -> Core:
        try:
            # Made while the zygote is busy with the session.
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

    def _opened(self, core: Core) -> Core:
        """A session that was made, from here on among those of the sandbox."""
        self._add(core)
        if self._closed:  # who closed it may have looked for its sessions before this one was there
            self._end(core)
            self._check_alive()
        self._supply.refill()
        return core

    @property
    def _home(self) -> SessionOwner:
        return SessionOwner(
            self._end,
            self._end_at_once,
            self._end_soon,
            self._forget,
            self._add,
            self._widen,
            self._narrow,
        )

    def _widen(self, core: Core) -> None:
        """Give a session room for one more branch."""
        self._check_alive()
        with self._places.taken():
            self._join(core)

    def _join(self, core: Core) -> None:
        try:
            fit = self._allowance.fit(core.links, core.limits)
            joined = core.links.family.join(1 + self._branches, fit)
        except OSError as error:
            raise SandboxError(f"no room for a branch: {error.strerror}") from error
        if not joined:
            raise SandboxError(
                f"branches={self._branches} branches of the session are open; close one first, or "
                "make the sandbox with more"
            )

    def _narrow(self, core: Core) -> None:
        """There is no such branch."""
        self._places.give_back()
        if core.links.family.leave():
            # The session was closed meanwhile, and left to this call.
            self._zygote.kill(core.links)
        else:
            self._refit(core)
        self._close_if_left()

    def _refit(self, core: Core) -> None:
        # Version 1 of the groups refuses a limit that is passed already; the watchdog looks at it.
        with contextlib.suppress(OSError, IsolationError):
            core.links.family.refit(self._allowance.fit(core.links, core.limits))

    def _add(self, core: Core) -> None:
        """The session, or branch, that had a place taken for it is open."""
        self._places.fill(core)
        self._watchdog.add(core)

    def _check_room(self, limits: Limits) -> None:
        """ValueError if a session's limits are more than its container's."""
        if self._container_limits is not None:
            container_settings.check_room(limits, self._container_limits)

    def _check_taking(self) -> None:
        """SandboxClosed if it begins no more sessions."""
        self._check_alive()
        if self._retired:
            raise SandboxClosed("the sandbox is retired: it closes with the last of its sessions")

    def _check_alive(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def _end(self, core: Core) -> None:
        if os.getpid() != self._pid:
            # In a forked child, which lacks the threads that may hold our locks. Nothing is said on
            # the links either: they are the parent's.
            core.links.close()
            return
        try:
            if not self._put_back(core) and self._places.leave(core):
                self._end_left(core)
        finally:
            self._close_if_left()

    def _end_at_once(self, core: Core) -> bool:
        """End a session for which nothing has to be waited for; False if it is no such one."""
        done = self._put_back(core)
        if done:
            self._close_beside()
        return done

    def _end_soon(self, core: Core) -> int | None:
        """As `SessionOwner.end_soon`: not of a session with branches, or that a call is under way
        in.
        """
        if core.busy.locked() or core.links.family.lines != 1 or os.getpid() != self._pid:
            return None
        core.io.closing = True
        gone = self._zygote.tell_to_end(core.links)
        if gone is None:
            return None
        if not self._places.leave(core):  # somebody else ends it, and waits for that
            os.close(gone)
            return None
        self._watchdog.remove(core)
        core.links.family.leave()
        return gone

    def _forget(self, core: Core) -> None:
        """A session that `_end_soon` had ended is gone."""
        core.forsake()
        self._close_beside()

    def _close_beside(self) -> None:
        """Close the sandbox, if it was retired and this was its last session; waits for nothing."""
        if self._retired:
            threading.Thread(target=self._close_if_left, name="repl-close").start()

    def _put_back(self, core: Core) -> bool:
        """Have a session that is as it was made serve another, if one like it is wanted."""
        ends = self._closed or self._retired or os.getpid() != self._pid
        if ends or not self._supply.wants(core.limits):
            return False
        links = core.withdraw_untouched()
        if links is None:
            return False
        left = self._places.leave(core)
        self._watchdog.remove(core)
        # Else the sandbox was closed meanwhile, and the session ends with it.
        if not left or not self._supply.give_back(links):
            links.close()
        return True

    def _end_left(self, core: Core) -> None:
        core.io.closing = True
        self._watchdog.remove(core)
        try:
            if core.links.family.leave():
                self._zygote.kill(core.links)
            else:
                self._zygote.leave(core.links)
                self._refit(core)
                core.links.group = None  # it is the others' as well
        finally:
            # A call that runs in another thread or task sees the session's end and leaves first;
            # its descriptors must not be closed, and given to others, under it. Who ends it amid a
            # call of his own, in an `on_output` or a handler of signals, would wait for himself.
            own = core.holder == threading.get_ident()
            if not own and core.busy.acquire(timeout=_LEAVE_TIMEOUT):
                core.busy.release()
            core.forsake()

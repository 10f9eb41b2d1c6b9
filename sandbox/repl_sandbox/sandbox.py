"""`Sandbox` and `AsyncSandbox`: a warm template that sessions are forked from."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar

from . import arguments
from .arguments import Grouping, RecoveryMode, Tier
from .cgroups.group import Group
from .cgroups.place import find
from .cgroups.supply import Groups, open_groups
from .checkpoint import Checkpoint, parse
from .errors import CheckpointError, IsolationError, SandboxClosed, SandboxError
from .jail import mounts as private
from .jail import rlimits
from .jail.users import SLOTS
from .offer import Offer
from .pool import Pool
from .session.asynchronous import AsyncSession
from .session.core import Core
from .session.handle import Home
from .session.host_functions import Executor, LoopExecutor
from .session.isolation import probe
from .session.offers import HostFunction, check
from .session.sync import Session
from .tiers import acceptable, confirm, strongest
from .types import Answer, Answers, Limits, Policy, Statistics, check_seed
from .watchdog import Watchdog
from .zygote.handle import Links, ZygoteHandle
from .zygote.nested_handle import NestedZygote

if TYPE_CHECKING:
    from .shared import Parcel, Shareable

# Steps that only a session with a group has.
_GROUP_STEPS = ("cgroup", "memory kill")

# Each session of this process gets its own slot, hence its own uids; processes start apart.
_slots = itertools.count(secrets.randbelow(SLOTS))

# init, besides the code's own process.
_OWN_PROCESSES = 2
# Of a group whose session must not harm others, above RLIMIT_NPROC, which counts the worker's user
# alone: a flood of forks is then refused in 3 µs by the one, before anything is done, and not in
# 300 by the other, when all is copied under locks that every fork on the machine waits for.
_SPARE_PROCESSES = 16
# And what a group is charged for them: init's pages, page tables, stacks in the kernel.
_OWN_MEMORY = 32 << 20

# A call leaves within milliseconds of its session's end, unless its `on_output` hangs.
_LEAVE_TIMEOUT = 5.0


_NO_PICKLE = "cannot be pickled: it is a live process; make one where it is used"


class Sandbox:
    """A warm, sealed template, and the sessions forked from it. Thread-safe; a context manager.

    `python`: the interpreter (default: this one). `preload`: modules imported once, in the
    template. `mounts`: {path inside: path of the host}, a file or a directory, shown read-only;
    links in the host's path are resolved now and never again; started by root, sessions are users
    of their own and read there what everybody may; only tier "jailed" can show a path at another
    place. `limits`: of each session. `policy`: which Python its cells may use, all of it by
    default; no policy is a wall. `isolation`: a tier, "jailed", "confined" or "process", or "auto"
    for the strongest of the first two that works here; `require`: the weakest tier to accept
    (default: the one named; under "auto" "confined"). `refusals` says why stronger ones did not
    work. `ready`: sessions made ahead of time. `max_sessions`: how many may be open at once.
    `cgroup`: "auto" puts each jailed session into a cgroup where this process may make them,
    "require" raises where it may not, "off" never. `recovery`: "snapshot" keeps a waiting copy of
    each session's process, which takes over when that dies in a cell; under "restart" what follows
    is empty. `history`: how many cells `rollback` can undo; each takes one more waiting copy.
    `branches`: how many branches of a session may be open at once; the three or four processes of
    each count among `Limits.processes`.
    `hash_seed`: of hashes of text and bytes, hence
    of the order of sets, the same in every session; None draws one for each template.
    `yielding`: sessions that have used much CPU time lately give way to all other processes while
    there are too few processors, as far as the system lets this process arrange that, and those
    with more than eight busy processes are stopped now and then (docs/design.md, "Giving way").

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
    ) -> None:
        self._limits = arguments.check_limits(limits) or Limits()
        self._states = arguments.check_states(recovery, history)
        self._branches = branches
        self._yielding = yielding
        # Copies: of each state that is kept, of the current one, and one more while it is made, for
        # which there may be a process between.
        self._own_processes = _OWN_PROCESSES + (0 if self._states < 0 else self._states + 3)
        policy = arguments.check_policy(policy)
        tiers = arguments.check_grouping(cgroup, acceptable(isolation, require))
        preload, mounts = arguments.check_preload(preload), arguments.check_mounts(mounts or {})
        arguments.check_counts(python, ready, max_sessions, branches)
        self._max_sessions, self._ready = max_sessions, ready
        # Of numpy no policy knows but the one that lets everything through.
        self._arrays = policy is None or policy.language != "restricted"
        self._shared: dict[str, Shareable] = {}
        # A policy brings modules as well, among them `random`, whose state is then every session's.
        self._hash_seed = arguments.check_hash_seed(hash_seed)
        self._policy = policy
        self._preloaded = bool(preload) or policy is not None
        self._begin_life()
        self._zygote, self.refusals = strongest(
            tiers, lambda tier: self._start(tier, cgroup, python, preload, mounts, policy)
        )
        self._fill()

    def _begin_life(self) -> None:
        """What a sandbox has of its own, whatever its settings are: nothing yet."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: dict[int, Core] = {}
        self._started = 0
        self._closed = False
        self._executor = Executor()
        self._loop_executor = LoopExecutor()
        self._groups: Groups | None = None
        self._pool: Pool | None = None
        self._parent: Sandbox | None = None
        self._children: weakref.WeakSet[Sandbox] = weakref.WeakSet()

    def _fill(self) -> None:
        try:
            if self._ready:
                self._pool = Pool(self._ready, lambda: self._spawn(self._limits))
        except BaseException:
            self._stop()
            raise

    @property
    def shared(self) -> Mapping[str, Shareable]:
        """The objects that its sessions begin with, by name, as they were given."""
        return MappingProxyType(self._shared)

    def with_shared(self, /, **objects: Shareable) -> Sandbox:
        """A sandbox with this one's settings, whose sessions begin with `objects` as variables.

        A text, bytes, a JSON value or a numpy array (of plain data) is copied once, into a template
        that is forked from this one's; sessions share its memory until they write to it. What a
        session does with a variable, no other sees. Closing this sandbox closes that one first.

        Raises:
            TypeError, ValueError: naming the object: it is of another kind, JSON cannot carry it,
                its name is no variable's, or all are larger than 16 GiB.
            SandboxClosed, SandboxError: this sandbox is closed, or there is no room.
        """
        from . import shared  # who shares nothing does without it

        self._check_alive()
        with shared.pack(objects, arrays=self._arrays) as parcel:
            return self._child(parcel, objects, self._ready)

    def with_parcel(self, parcel: Parcel) -> Sandbox:
        """`with_shared` of objects that were packed before, perhaps by another process.

        What a parcel says is believed: it must come from `repl_sandbox.shared`. It stays the
        caller's to close. `shared` has `PACKED` in place of the objects. No session is made ahead
        of time, whatever `ready` is.

        Raises:
            SandboxClosed, SandboxError: as `with_shared`.
        """
        from .shared import PACKED

        self._check_alive()
        return self._child(parcel, dict.fromkeys(parcel.names, PACKED), 0)

    def _child(self, parcel: Parcel, objects: Mapping[str, Shareable], ready: int) -> Sandbox:
        child = object.__new__(type(self))
        # Every setting, whichever there are; then what cannot be another's.
        child.__dict__.update(self.__dict__)
        child._begin_life()
        child._parent = self  # which would end with its last reference
        child._shared = {**self._shared, **objects}
        child._preloaded = self._preloaded or parcel.arrays
        child._ready = ready
        child._grow(self, parcel)
        with self._lock:
            if not self._closed:
                self._children.add(child)
                return child
        child.close()
        raise SandboxClosed("the sandbox was closed meanwhile")

    def _grow(self, parent: Sandbox, parcel: Parcel) -> None:
        """Start a template that is forked from the parent's."""
        if parent._groups is not None:
            self._groups = _groups("require", weighed=self._yielding)
        try:
            self._zygote = NestedZygote(parent._zygote, parcel.fd, parcel.manifest)
        except BaseException:
            self._remove_groups()
            raise
        self._watchdog = Watchdog(self._zygote.pid, yielding=self._yielding)
        self._fill()

    def session(
        self,
        *,
        host: Mapping[str, HostFunction | Offer] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        answers: Answers | None = None,
        on_answer: Callable[[Answer], None] | None = None,
    ) -> Session:
        """A new session.

        `host`: {name: function}, sync or async, callable from the session with JSON arguments; it
        returns JSON. An `Offer` in its place says more of how it looks there. `limits`: default
        those of the sandbox. `seed`: for `random` and, if preloaded, numpy. `answers`: put FINAL,
        FINAL_VAR, SUBMIT, final_answer and the dict `answer` in the namespace; "compatible" also
        takes printed forms (see `Answer`). `on_answer` is called with each answer; its ValueError
        refuses the answer.

        Raises:
            SandboxClosed, SandboxError: the sandbox is closed, or `max_sessions` are open.
            TypeError, ValueError: naming the argument.
        """
        core = self._core(self._executor, host, limits, seed, answers, on_answer)
        return Session(core, self._home)

    def restore(
        self,
        data: bytes,
        *,
        host: Mapping[str, HostFunction | Offer] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        answers: Answers | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        timeout: float | None = None,
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
            for path, content in (files or {}).items():
                session.files.put(path, content)
            session._load(saved, timeout)
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
        with self._lock:
            return Statistics(len(self._open), len(self._pool or ()), self._started)

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
            closing.callback(self._remove_groups)
            closing.callback(self._zygote.close)
            for child in list(self._children):
                closing.callback(child.close)
            closing.callback(self._loop_executor.close)
            closing.callback(self._executor.close)
            for core in list(self._open.values()):
                closing.callback(self._end, core)
            for links in self._pool.close() if self._pool is not None else ():
                closing.callback(self._zygote.end, links)
            closing.callback(self._watchdog.close)

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
        raise TypeError(f"a Sandbox {_NO_PICKLE}")

    def _start(
        self,
        tier: str,
        cgroup: Grouping,
        python: str | None,
        preload: Sequence[str],
        mounts: Mapping[str, str],
        policy: Policy | None,
    ) -> ZygoteHandle:
        """A template of `tier`, of which one session was made to see that it is what it says."""
        if tier == "jailed":
            self._groups = _groups(cgroup, weighed=self._yielding)
        try:
            self._zygote = ZygoteHandle(python, preload, mounts, policy, tier, self._hash_seed)
        except BaseException:
            self._remove_groups()
            raise
        try:
            self._watchdog = Watchdog(self._zygote.pid, yielding=self._yielding)
            self._try(tier, cgroup)
        except BaseException:
            self._stop()
            raise
        return self._zygote

    def _stop(self) -> None:
        self._zygote.close()
        self._remove_groups()

    # ── making and ending sessions ────────────────────────────────────────────────────────────

    def _core(
        self,
        executor: Executor,
        host: Mapping[str, HostFunction | Offer] | None,
        limits: Limits | None,
        seed: int | None,
        answers: Answers | None,
        on_answer: Callable[[Answer], None] | None,
    ) -> Core:
        offers = check(host)
        if self._shared and (clash := self._shared.keys() & offers.names):
            taken = ", ".join(sorted(clash))
            raise ValueError(f"host: {taken} is the name of a shared object")
        limits = arguments.check_limits(limits) or self._limits
        if answers not in (None, "strict", "compatible"):
            raise ValueError(f"answers must be None, 'strict' or 'compatible', not {answers!r}")
        check_seed(seed)
        self._check_alive()
        self._check_room()
        links = self._pool.take() if self._pool is not None and limits == self._limits else None
        links = links or self._begin(limits)
        try:
            # Made while the zygote is busy with the session.
            core = Core(
                links,
                limits,
                self._rlimits(limits),
                offers=offers,
                executor=executor,
                seed=seed,
                answers=answers,
                on_answer=on_answer,
                preloaded=self._preloaded,
                states=self._states,
                ours=self._own_processes - 1,
            )
        except BaseException:
            self._zygote.abandon(links)
            raise
        if not links.worker_pid:
            self._zygote.finish(links)
        core.ready()
        self._add(core)
        return core

    @property
    def _home(self) -> Home:
        return Home(self._end, self._add, self._widen, self._narrow)

    def _widen(self, core: Core) -> None:
        """Give a session room for one more branch."""
        self._check_alive()
        self._check_room()
        try:
            joined = core.links.family.join(1 + self._branches, self._fit(core))
        except OSError as error:
            raise SandboxError(f"no room for a branch: {error.strerror}") from error
        if not joined:
            raise SandboxError(
                f"branches={self._branches} branches of the session are open; close one first, or "
                "make the sandbox with more"
            )

    def _narrow(self, core: Core) -> None:
        """There is no such branch."""
        if core.links.family.leave():
            # The session was closed meanwhile, and left to this call.
            self._zygote.kill(core.links)
        else:
            self._refit(core)

    def _fit(self, core: Core) -> Callable[[int], None]:
        group, limits = core.links.group, core.limits

        def fit(lines: int) -> None:
            if group is not None:
                group.limit(self._memory(limits, lines), self._in_group(limits, lines))

        return fit

    def _refit(self, core: Core) -> None:
        # Version 1 of the groups refuses a limit that is passed already; the watchdog looks at it.
        with contextlib.suppress(OSError, IsolationError):
            core.links.family.refit(self._fit(core))

    def _add(self, core: Core) -> None:
        with self._lock:
            self._open[id(core)] = core
        self._watchdog.add(core)

    def _check_alive(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def _check_room(self) -> None:
        if self._max_sessions is not None and len(self._open) >= self._max_sessions:
            raise SandboxError(
                f"max_sessions={self._max_sessions} sessions are open; close one first"
            )

    def _begin(self, limits: Limits) -> Links:
        self._started += 1
        chosen, group = self._rlimits(limits), self._group(limits)
        return self._zygote.begin(_slot(), int(limits.workspace), chosen, group, self._states)

    def _try(self, tier: str, cgroup: Grouping) -> None:
        """A jail that cannot be built is the error of who makes the sandbox, not of a session."""
        try:
            self._try_session(tier)
        except IsolationError as error:
            if cgroup != "auto" or self._groups is None or error.step not in _GROUP_STEPS:
                raise
            # Nothing was promised yet; the layer will say that there is none.
            self._remove_groups()
            self._try_session(tier)

    def _try_session(self, tier: str) -> None:
        links = self._jail(self._limits)
        try:
            confirm(tier, probe(links))
        finally:
            self._zygote.end(links)

    def _spawn(self, limits: Limits) -> Links:
        self._started += 1
        return self._jail(limits)

    def _jail(self, limits: Limits) -> Links:
        chosen, group = self._rlimits(limits), self._group(limits)
        return self._zygote.spawn(_slot(), int(limits.workspace), chosen, group, self._states)

    def _group(self, limits: Limits) -> Group | None:
        """A group that holds what the session may hold; None where groups cannot be had."""
        if self._groups is None:
            return None
        return self._groups.take(self._memory(limits, 1), self._in_group(limits, 1))

    def _memory(self, limits: Limits, lines: int) -> int:
        """Bytes that a session may be charged with while it has so many lines."""
        # Its files outlive its worker, so they must leave the next one all of its memory.
        files = private.capacity(int(limits.workspace))
        ours = self._watchdog.template_memory + _OWN_MEMORY
        return lines * self._allowed(limits) + files + ours

    def _processes(self, limits: Limits, lines: int) -> int:
        """Processes that a session may have while it has so many lines, ours among them."""
        return limits.processes + lines * self._own_processes

    def _in_group(self, limits: Limits, lines: int) -> int:
        """The limit of its group, if it has one."""
        spare = _SPARE_PROCESSES if self._yielding else 0
        return self._processes(limits, lines) + spare

    def _allowed(self, limits: Limits) -> int:
        """Bytes that a session's processes may hold together, copies that wait among them.

        What a cell rewrites is there twice while a copy keeps what it was.
        """
        return int(limits.memory) * (1 if self._states < 0 else 2)

    def _remove_groups(self) -> None:
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    def _rlimits(self, limits: Limits) -> dict[str, int]:
        chosen = {
            "DATA": self._zygote.data_segment + int(limits.memory),
            # The kernel counts by user. Where that is also the host's, this only stops a flood of
            # them, and the watchdog counts the session's.
            "NPROC": self._zygote.room or self._processes(limits, 1),
            "NOFILE": rlimits.open_files(limits.open_files, own_user=self._zygote.privileged),
            "FSIZE": int(limits.file_size),
        }
        if limits.cpu_seconds is not None:
            chosen["CPU"] = max(1, round(limits.cpu_seconds))
        return chosen

    def _end(self, core: Core) -> None:
        if os.getpid() != self._pid:
            # In a forked child, which lacks the threads that may hold our locks. Nothing is said on
            # the links either: they are the parent's.
            core.links.close()
            return
        with self._lock:
            known = self._open.pop(id(core), None)
        if known is None:
            return
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
            # its descriptors must not be closed, and given to others, under it.
            if core.busy.acquire(timeout=_LEAVE_TIMEOUT):
                core.links.close()
                core.close()


def _groups(cgroup: Grouping, *, weighed: bool) -> Groups | None:
    if cgroup == "off":
        return None
    try:
        return open_groups(find(), weighed=weighed)
    except IsolationError:
        if cgroup == "require":
            raise
        return None


def _slot() -> int:
    return next(_slots) % SLOTS


class AsyncSandbox:
    """`Sandbox` for asyncio: `async with`, sessions awaited. Arguments are those of `Sandbox`."""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._sandbox: Sandbox | None = None
        self._starting: asyncio.Task[Sandbox] | None = None
        self._owner = True

    @classmethod
    def of(cls, sandbox: Sandbox) -> AsyncSandbox:
        """The asynchronous face of a `Sandbox` that runs, which stays its owner's.

        Any number of faces, on any event loops, beside its plain sessions. To close a face closes
        nothing: sessions are closed by whoever opened them, and the sandbox by its owner.

        Raises:
            TypeError: `sandbox` is no Sandbox.
        """
        if not isinstance(sandbox, Sandbox):
            raise TypeError(f"sandbox must be a Sandbox, not {type(sandbox).__name__}")
        face = cls()
        face._sandbox, face._owner = sandbox, False
        return face

    @property
    def plain(self) -> Sandbox | None:
        """The `Sandbox` that this is a face of; None before it has started."""
        return self._sandbox

    async def __aenter__(self) -> AsyncSandbox:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the template, unless it runs already."""
        if self._sandbox is not None:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(
                asyncio.to_thread(lambda: Sandbox(**self._arguments))
            )
        starting = self._starting
        try:
            # One for all who wait, and kept for `close` if they leave first.
            self._sandbox = await asyncio.shield(starting)
        finally:
            if starting.done() and self._starting is starting:
                self._starting = None

    def session(
        self,
        *,
        host: Mapping[str, HostFunction | Offer] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        answers: Answers | None = None,
        on_answer: Callable[[Answer], None] | None = None,
    ) -> SessionRequest:
        """As `Sandbox.session`; await it, or use it in `async with`."""

        async def start() -> AsyncSession:
            await self.start()
            sandbox = self._sandbox
            assert sandbox is not None
            making = asyncio.create_task(
                asyncio.to_thread(
                    sandbox._core, sandbox._loop_executor, host, limits, seed, answers, on_answer
                )
            )
            try:
                core = await asyncio.shield(making)
            except asyncio.CancelledError:
                # The thread goes on, and nobody else would close what it makes.
                _end_when_made(making, sandbox)
                raise
            return AsyncSession(core, sandbox._home)

        return SessionRequest(start)

    def restore(
        self,
        data: bytes,
        *,
        host: Mapping[str, HostFunction | Offer] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        answers: Answers | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        timeout: float | None = None,
    ) -> SessionRequest:
        """As `Sandbox.restore`; await it, or use it in `async with`."""

        async def start() -> AsyncSession:
            await self.start()
            assert self._sandbox is not None
            saved = self._sandbox._readable(await asyncio.to_thread(parse, data))
            session = await self.session(
                host=host, limits=limits, answers=answers, on_answer=on_answer
            )
            try:
                for path, content in (files or {}).items():
                    await session.files.put(path, content)
                await session._load(saved, timeout)
            except BaseException:
                await asyncio.shield(session.close())
                raise
            return session

        return SessionRequest(start)

    @property
    def shared(self) -> Mapping[str, Shareable]:
        """As `Sandbox.shared`."""
        return {} if self._sandbox is None else self._sandbox.shared

    def with_shared(self, /, **objects: Shareable) -> SandboxRequest:
        """As `Sandbox.with_shared`; await it, or use it in `async with`."""
        return self._growing(lambda sandbox: partial(sandbox.with_shared, **objects))

    def with_parcel(self, parcel: Parcel) -> SandboxRequest:
        """As `Sandbox.with_parcel`; who is cancelled meanwhile may close the parcel as well."""

        def growing(sandbox: Sandbox) -> Callable[[], Sandbox]:
            copy = replace(parcel, fd=os.dup(parcel.fd))

            def grow() -> Sandbox:
                with copy:
                    return sandbox.with_parcel(copy)

            return grow

        return self._growing(growing)

    def _growing(self, growing: Callable[[Sandbox], Callable[[], Sandbox]]) -> SandboxRequest:
        async def start() -> AsyncSandbox:
            await self.start()
            sandbox = self._sandbox
            assert sandbox is not None
            making = asyncio.create_task(asyncio.to_thread(growing(sandbox)))
            try:
                child = await asyncio.shield(making)
            except asyncio.CancelledError:
                _close_when_made(making)
                raise
            found = AsyncSandbox()
            found._sandbox = child
            return found

        return SandboxRequest(start)

    def statistics(self) -> Statistics:
        """As `Sandbox.statistics`."""
        return Statistics(0, 0, 0) if self._sandbox is None else self._sandbox.statistics()

    async def close(self) -> None:
        """As `Sandbox.close`; of a face (`of`) nothing."""
        if not self._owner:
            return
        if self._starting is not None:
            with contextlib.suppress(SandboxError, TypeError, ValueError):
                await self.start()
        if self._sandbox is not None:
            await asyncio.to_thread(self._sandbox.close)

    @property
    def refusals(self) -> tuple[IsolationError, ...]:
        """As `Sandbox.refusals`; empty before the template runs."""
        return () if self._sandbox is None else self._sandbox.refusals

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an AsyncSandbox {_NO_PICKLE}")


def _end_when_made(making: asyncio.Task[Core], sandbox: Sandbox) -> None:
    def end(made: asyncio.Task[Core]) -> None:
        if not made.cancelled() and made.exception() is None:
            sandbox._end(made.result())

    making.add_done_callback(end)


def _close_when_made(making: asyncio.Task[Sandbox]) -> None:
    def end(made: asyncio.Task[Sandbox]) -> None:
        if not made.cancelled() and made.exception() is None:
            # It may wait for processes, and this is the event loop's thread.
            threading.Thread(target=made.result().close, name="repl-close").start()

    making.add_done_callback(end)


class _Closable(Protocol):
    async def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)


class _Request(Generic[_T]):
    """Something to come: awaitable, and an async context manager that closes it."""

    def __init__(self, start: Callable[[], Awaitable[_T]]) -> None:
        self._start = start
        self._made: _T | None = None

    def __await__(self) -> Generator[Any, None, _T]:
        return self._start().__await__()

    async def __aenter__(self) -> _T:
        self._made = await self._start()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.close()


class SessionRequest(_Request[AsyncSession]):
    """A session to come: awaitable, and an async context manager that closes it."""


class SandboxRequest(_Request[AsyncSandbox]):
    """A sandbox to come: awaitable, and an async context manager that closes it."""

"""`Sandbox`: a warm template process, and the sessions that are forked from it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn

from .display import DisplayedByRepr, set_module
from .errors import SandboxClosed
from .host.container import ContainerLimits, Inside
from .host.pool import CoreFactory, SessionArguments, SessionLifecycle, WarmPool, core_factory
from .host.template import TemplateProcess, start_template
from .options import Grouping, RecoveryMode, SandboxSettings, Tier
from .protocol.checkpoints import Checkpoint, parse
from .session.blocking import Session
from .session.calls import FunctionExecutor, LoopFunctionExecutor
from .session.core import Core
from .session.host_functions import HostCallable, HostFunction
from .session.running_cell import Accept
from .types import Answers, Limits, Policy, Statistics

if TYPE_CHECKING:
    from .host.shared_objects import Shareable, SharedObjects

# A caller that opened so many sessions with the same shared objects is likely to open another.
_START_AHEAD_AFTER = 2

NO_PICKLE = "cannot be pickled: it is a live process; make one in the process that uses it"


@set_module("repl_sandbox")
class Sandbox(DisplayedByRepr):
    """A warm, sealed template process, and the sessions that are forked from it.

    ```python
    with Sandbox(limits=Limits(memory="512MiB"), preload=["json"]) as sandbox:
        with sandbox.session() as session:
            print(session.run("1 + 1").value)  # 2
    ```
    Thread-safe; a context manager.

    Args:
        python: The interpreter; default: this one, in a container `python3`.
        preload: Modules to import once, in the template.
        mounts: {path inside: path of the host}, a file or a directory, read-only. Symbolic links in
            the host's path are resolved once, now. If root starts the sandbox, sessions run as
            users of their own and read there only what everybody may. Only the tiers "jailed" and
            "container" can show a path at another place.
        limits: The limits of each session.
        policy: The part of Python that cells may use; default: all of it. A policy is no isolation.
        isolation: A tier, "jailed", "container", "confined" or "process", or "auto" for the
            strongest of "jailed" and "confined" that works here. `refusals` has the reasons why a
            stronger one did not work.
        require: The weakest tier to accept; default: the named one, under "auto" "confined".
        ready: The number of sessions to start ahead of time.
        max_sessions: The number of sessions that may be open at once.
        cgroup: "auto" puts each jailed session into a cgroup of its own if this process may create
            cgroups, "require" raises if it may not, "off" uses none.
        recovery: "snapshot" keeps a copy-on-write snapshot of each session's worker, which takes
            over if the worker dies in a cell; with "restart" the session goes on empty.
        history: The number of cells that `rollback` can undo; each takes one more snapshot.
        branches: The number of branches of one session that may be open at once. The three or four
            processes of each branch count among `Limits.processes`.
        hash_seed: Seed of the hashes of str and bytes, hence of the order of sets, for every
            session; None draws one for each template.
        fair_share: Slow down sessions that used much CPU time lately while processors are
            contended, as far as the system permits, and stop sessions with more than eight busy
            processes now and then (docs/design/fair-share.md).
        image: For tier "container": an image with CPython 3.11 or later.
        runtime: For tier "container": the daemon's runtime; None: the daemon's default.
        container_limits: For tier "container": the limits of the container with all its sessions.
        per_session: Start a container for each session; None: if the runtime has a kernel of its
            own.
        inside: "jailed" jails the sessions in their container, which removes the restrictions of
            the container that would prevent it (docs/design/tiers.md).

    Raises:
        IsolationError: the tier does not work here; names the step that failed and a remedy.
        SandboxError: the interpreter does not start, or lacks a module of `preload` or of the
            policy.
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
        fair_share: bool = False,
        image: str | None = None,
        runtime: str | None = None,
        container_limits: ContainerLimits | None = None,
        per_session: bool | None = None,
        inside: Inside = "confined",
    ) -> None:
        self._settings = SandboxSettings.of(
            python=python,
            preload=preload,
            mounts=mounts,
            limits=limits,
            policy=policy,
            isolation=isolation,
            require=require,
            ready=ready,
            max_sessions=max_sessions,
            cgroup=cgroup,
            recovery=recovery,
            history=history,
            branches=branches,
            hash_seed=hash_seed,
            fair_share=fair_share,
            image=image,
            runtime=runtime,
            container_limits=container_limits,
            per_session=per_session,
            inside=inside,
        )
        template, self.refusals = start_template(self._settings)
        self._shared: Mapping[str, Shareable] = {}
        self._preloads = self._settings.preloads
        self._serve(template, self._settings.ready)

    @property
    def limits(self) -> Limits:
        """The limits of sessions that are opened without others."""
        return self._settings.limits

    @property
    def mounts(self) -> Mapping[str, str]:
        """The mounted paths of the host, by their paths inside a session."""
        return MappingProxyType(self._settings.mounts)

    def _serve(self, template: TemplateProcess, ready: int, *, after: int = 0) -> None:
        """Take over `template`, and start the sessions of the warm pool.

        `ready`, `after`: as of `ReadySessions`.
        """
        try:
            pool = WarmPool(template, self._settings.limits, ready, after=after)
        except BaseException:
            template.close()
            raise
        self._template, self._zygote = template, template.zygote
        self._ready, self._ready_after = ready, after
        self._lifecycle = SessionLifecycle(
            template, pool, self._settings.max_sessions, self._settings.branches, self.close
        )
        self._lock = threading.Lock()
        self._executor = FunctionExecutor()
        self._loop_executor = LoopFunctionExecutor()
        self._parent: Sandbox | None = None
        self._children: weakref.WeakSet[Sandbox] = weakref.WeakSet()

    def __repr__(self) -> str:
        lifecycle = self._lifecycle
        condition = "closed" if lifecycle.is_unusable else f"open, sessions: {len(lifecycle)}"
        return f"<{type(self).__name__} {self._zygote.tier}, {condition}>"

    @property
    def tier(self) -> str:
        """The isolation tier of its sessions."""
        return self._zygote.tier

    @property
    def shared(self) -> Mapping[str, Shareable]:
        """The shared objects of its sessions by name, as they were given."""
        return MappingProxyType(self._shared)

    def with_shared(self, /, **objects: Shareable) -> Sandbox:
        """Return a sandbox with the same settings and `objects` as variables of its sessions.

        A str, bytes, a JSON value or a numpy array (of plain data) is copied once, into a template
        that is forked from this one's; sessions share its memory until they write to it. Changes
        that a session makes to a variable stay in that session. Closing this sandbox closes the
        returned one first. The returned sandbox has as many ready sessions as this one; if that is
        none, it starts one ahead of time after its second session was opened.
        ```python
        with sandbox.with_shared(text="one long text\\n" * 100_000) as shared:
            with shared.session() as first, shared.session() as second:
                print(first.run("len(text)").value, second.run("text[:3]").value)  # 1400000 'one'
        ```
        Raises:
            TypeError, ValueError: naming the object: its type is not supported, JSON cannot carry
                it, its name is not a variable's, or all objects together exceed 16 GiB.
            SandboxClosed, SandboxError: this sandbox is closed, or the memory does not suffice.
        """
        from .host import shared_objects  # only loaded if needed

        self._lifecycle.check_accepts_sessions()
        with shared_objects.pack(objects, arrays=self._settings.knows_arrays) as parcel:
            if self._ready:
                return self._child(parcel, objects, self._ready, after=self._ready_after)
            return self._child(parcel, objects, 1, after=_START_AHEAD_AFTER)

    def with_parcel(self, parcel: SharedObjects) -> Sandbox:
        """As `with_shared`, for objects that were packed before, perhaps by another process.

        The contents are trusted: they must come from `repl_sandbox.host.shared_objects`.
        The caller closes the parcel. `shared` has `PACKED` in place of the objects. No session is
        started ahead of time, whatever `ready` is.

        Raises:
            SandboxClosed, SandboxError: as `with_shared`.
        """
        from .host.shared_objects import PACKED

        self._lifecycle.check_accepts_sessions()
        return self._child(parcel, dict.fromkeys(parcel.names, PACKED), 0)

    def _child(
        self, parcel: SharedObjects, objects: Mapping[str, Shareable], ready: int, *, after: int = 0
    ) -> Sandbox:
        child = object.__new__(type(self))
        child._settings, child.refusals = self._settings, self.refusals
        child._shared = {**self._shared, **objects}
        child._preloads = self._preloads or parcel.arrays
        child._serve(self._template.fork(parcel), ready, after=after)
        child._parent = self  # a reference, without which this sandbox could end first
        with self._lock:
            if not self._lifecycle.closed:
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
        """Open a session.

        ```python
        limits = Limits(memory="256MiB", timeout=5)
        with sandbox.session(host={"shout": str.upper}, limits=limits, seed=1) as session:
            print(session.run("shout('hello')").value)  # 'HELLO'
        ```
        Args:
            host: {name: function}, sync or async: functions that code in the session can call with
                JSON arguments, and that return JSON. A `HostFunction` says more of its function.
            limits: Default: those of the sandbox.
            seed: Seed of `random` and numpy.
            answers: Put FINAL, FINAL_VAR, SUBMIT, final_answer and the dict `answer` into the
                namespace; "compatible" also accepts printed forms (see `Answer`).
            on_answer: A function that is called with each answer; its ValueError refuses the
                answer. It may be a coroutine function: the cell waits for it as for a host
                function.

        Raises:
            SandboxClosed, SandboxError: the sandbox is closed or its template has ended, or
                `max_sessions` sessions are open.
            TypeError, ValueError: naming the argument.
        """
        arguments = SessionArguments(host, limits, seed, answers, on_answer)
        core = self._core(self._executor, arguments)
        return Session(core, self._lifecycle.owner(self))

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
        """Open a session with the namespace that `Session.checkpoint` saved.

        Loading runs code of `data` as a cell runs: in the session, within its limits, for at most
        `timeout` seconds. `files` ({path: content}) are put into the workspace before, for modules
        that are imported from there. `session` describes the other arguments. `Session.missing`
        lists the variables that were not saved, or did not load.
        ```python
        with sandbox.session() as session:
            session.run("total = 7")
            data = session.checkpoint()
        with sandbox.restore(data) as session:
            print(session.get("total"))  # 7
        ```
        Raises:
            CheckpointError: `data` is not a checkpoint, is damaged, is of another version of
                Python, or did not load; or this sandbox has a language policy, which loading would
                bypass.
            TypeError, ValueError: naming the argument.
        """
        saved = self._check_checkpoint(parse(data))
        session = self.session(host=host, limits=limits, answers=answers, on_answer=on_answer)
        try:
            session.files.put_all(files or {})
            session._load(saved, timeout, timeout_s)
        except BaseException:
            session.close()
            raise
        return session

    def _check_checkpoint(self, saved: Checkpoint) -> Checkpoint:
        """Return `saved`; raise CheckpointError if this sandbox cannot load it."""
        self._settings.check_checkpoint(saved, self._zygote.interpreter)
        return saved

    def statistics(self) -> Statistics:
        """The numbers of sessions that are open, ready and were started."""
        return self._lifecycle.statistics()

    def close(self) -> None:
        """End all sessions and the template. Idempotent."""
        lifecycle = self._lifecycle
        if lifecycle.in_forked_child:
            lifecycle.closed = True
            return
        with self._lock:
            if lifecycle.closed:
                return
            lifecycle.closed = True
        # Every callback runs, the last one first, even if another raises.
        with contextlib.ExitStack() as closing:
            closing.callback(self._template.close)
            for child in list(self._children):
                closing.callback(child.close)
            closing.callback(self._loop_executor.close)
            closing.callback(self._executor.close)
            closing.callback(lifecycle.end_all)

    def retire(self) -> None:
        """Start no more sessions, and close when the last open session is closed. Idempotent.

        Open sessions go on, and may have branches. Without any, this is `close`.
        """
        self._lifecycle.retired = True
        self._lifecycle.close_if_unused()

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

    def _core(self, executor: FunctionExecutor, arguments: SessionArguments) -> Core:
        """Start a session, and wait until it is ready."""
        return self._lifecycle.start(*self._core_factory(executor, arguments))

    def _core_factory(
        self, executor: FunctionExecutor, arguments: SessionArguments
    ) -> tuple[Limits, CoreFactory]:
        """Check the arguments; return the limits, and a function that makes the core on links."""
        return core_factory(
            self._settings,
            self._template.budget,
            executor,
            arguments,
            shared=self._shared.keys(),
            preloads=self._preloads,
        )

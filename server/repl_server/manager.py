"""`SessionManager`: opens, finds, drains and ends the sessions of a server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any

from pydantic import BaseModel

import repl_env
from repl_env.client.protocol import DOES_NOT_READ, IDLE, OVER_QUOTA
from repl_env.env.environment import REPLEnvironment
from repl_env.episode.sandboxes import SandboxProvider, SandboxRegistry, SandboxSettings
from repl_env.errors import REPLError
from repl_env.interfaces import EnvironmentMetadata

from .connections import ReceiveBuffers
from .contexts import SharedTemplates, TenantUploads
from .environments import (
    CustomAdapter,
    EnvironmentAdapter,
    EnvironmentFactory,
    MetadataCache,
    REPLAdapter,
    factory_error,
    found_tasks,
    tasks_unsupported,
)
from .handlers import HANDLERS
from .json_codec import JSONCodec
from .quotas import QuotaRegistry, UsageMeter
from .scheduler import RequestScheduler
from .session import TURN, CPUAccounting, Handler, ServerSession, hold
from .settings import Settings
from .subcalls import SessionSubcalls, warm_up
from .telemetry import Telemetry
from .tenants import RequestError, Tenant, draining_error, is_loopback
from .uploads import UploadQuota, UploadStore

# `SessionSweeper`: ends the sessions that are idle, abandoned, revoked, or out of CPU time.

# Maximum seconds between two sweeps for unused sessions.
SWEEP_S = 1.0
_MIN_SWEEP_S = 0.01
# Seconds in which a client must use a session that its protocol makes it use at once: a client that
# left before it learnt the session's id will never come back.
CONFIRM_S = 30.0
# Sessions whose CPU time one sweep reads, in rotation; each takes a tenth of a millisecond.
_CPU_READS = 32


class SessionSweeper:
    """Examines the sessions of a server periodically.

    Args:
        settings: of the server.
        keys: the keys whose tenants may have sessions; None: sessions are not ended by their keys.
        sessions: returns the open sessions.
        others: called by each sweep, for uploads and templates.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Container[str] | None,
        sessions: Callable[[], list[ServerSession]],
        others: Sequence[Callable[[], None]],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._sessions = sessions
        self._others = others
        self._next = 0  # index of the next session whose CPU time is read
        self.sweeps = 0  # sweeps so far

    async def run(self) -> None:
        """Sweep until cancelled."""
        settings = self._settings
        shortest = min(settings.idle_s, settings.grace_s, settings.send_s)
        while True:
            await asyncio.sleep(min(SWEEP_S, max(_MIN_SWEEP_S, shortest / 4)))
            self.sweeps += 1
            now = time.monotonic()
            for session in self._sessions():
                self._sweep_session(session, now)
            self._sweep_cpu()
            for sweep in self._others:
                sweep()

    def _sweep_session(self, session: ServerSession, now: float) -> None:
        self._end_slow_reader(session, now)
        self._end_revoked(session)
        if not session.awaited:
            self._end_unused(session, now)

    def _end_slow_reader(self, session: ServerSession, now: float) -> None:
        sink = session.sink
        blocked = None if sink is None else sink.blocked_since
        if sink is not None and blocked is not None and now - blocked > 2 * self._settings.send_s:
            # `BoundedConnection` measures the rate and acts first; other ASGI servers do not.
            sink.end(DOES_NOT_READ, "the client did not read its messages")

    def _end_revoked(self, session: ServerSession) -> None:
        if not self._is_revoked(session.tenant):
            return
        if session.sink is not None:
            revoked = RequestError("UNAUTHENTICATED", "the API key was revoked, or has expired")
            session.sink.end(revoked.close or 1000, revoked.message)
        session.end("revoked")

    def _is_revoked(self, tenant: Tenant) -> bool:
        return self._keys is not None and tenant.kind == "key" and tenant.name not in self._keys

    def _end_unused(self, session: ServerSession, now: float) -> None:
        settings, used_at = self._settings, session.used_at
        longest = settings.idle_s if session.confirmed else min(settings.idle_s, CONFIRM_S)
        if now - used_at > longest:
            if session.sink is not None:
                session.sink.end(IDLE, "the session was idle for too long")
            session.end("idle")
        elif (
            session.detached_at is not None
            and now - max(session.detached_at, used_at) > settings.grace_s
        ):
            session.end("grace")

    def _sweep_cpu(self) -> None:
        """End sessions that keep computing while idle, once their tenant's CPU time is used up."""
        sessions = self._sessions()
        for _ in range(min(_CPU_READS, len(sessions))):
            self._next += 1
            session = sessions[self._next % len(sessions)]
            if session.account_cpu() and not session.busy and session.meter.owes_cpu:
                if session.sink is not None:
                    session.sink.end(OVER_QUOTA, "the processes used up the tenant's CPU time")
                session.end("quota")


logger = logging.getLogger("repl_server")

# Seconds for closing all sessions when the server stops. Only a custom environment exceeds them, if
# it hangs in its thread, which cannot be killed, or in a coroutine that ignores cancellation.
CLOSE_S = 10.0


class SessionManager:
    """The sessions of one server. A context manager that closes its sessions and sandbox.

    Args:
        settings: of the server.
        keys: the keys whose tenants may have sessions; None: sessions are not ended by their keys.
        environment: creates an environment for each session; None: `REPLEnvironment`, with sessions
            from a sandbox of the manager.
        action, observation, state: the models of the environment.

    Attributes:
        tier: isolation tier of the sessions once the manager is prepared; None: an environment
            decides.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        keys: Container[str] | None = None,
        environment: Callable[[], Any] | None = None,
        action: type[BaseModel],
        observation: type[BaseModel],
        state: type[BaseModel],
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.action, self.observation, self.state_model = action, observation, state
        self._factory = EnvironmentFactory(environment or REPLEnvironment, settings)
        self._metadata_cache = MetadataCache(self._factory)
        self.admission = self._factory.admission
        self.quotas = QuotaRegistry(settings.quota, public=not is_loopback(settings.host))
        self.inbound = ReceiveBuffers(settings)
        self.scheduler = RequestScheduler()
        self.telemetry = Telemetry(contents=settings.log_contents)
        uploaded = UploadQuota(settings.uploads_bytes, self.quotas.meter_of)
        self._set_gauges(uploaded)
        self.uploads = UploadStore(settings, uploaded)
        self.templates = SharedTemplates(uploaded)
        self.json_codec = JSONCodec()
        self.sandboxes = SandboxRegistry()
        self.sandbox_provider = SandboxProvider(None, _sandbox_settings(settings), self.sandboxes)
        self.handlers: dict[str, Handler] = {**HANDLERS, TURN: hold}
        self._sessions: dict[bytes, ServerSession] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self.draining = False
        self.tier: str | None = None
        self._leaked: set[ServerSession] = set()  # not closed in time
        self.sweeper = SessionSweeper(
            settings, keys, lambda: self.sessions, (self.templates.sweep, self.uploads.sweep)
        )

    def _set_gauges(self, uploaded: UploadQuota) -> None:
        admission, settings, metrics = self.admission, self.settings, self.telemetry.metrics
        metrics.set_gauge("sessions_open", lambda: admission.open)
        metrics.set_gauge("sessions_max", lambda: admission.max_open)
        metrics.set_gauge("sessions_waiting", lambda: admission.waiting)
        metrics.set_gauge("sessions_waiting_max", lambda: admission.max_waiting)
        metrics.set_gauge("requests_waiting", lambda: len(self.scheduler))
        metrics.set_gauge("inbound_bytes_max", lambda: settings.inbound_bytes)
        metrics.set_gauge("uploaded_bytes", lambda: uploaded.used)
        metrics.set_gauge("uploaded_bytes_max", lambda: settings.uploads_bytes)

    # ── life cycle ───────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Import libraries and start the sandbox, as far as they are needed. Blocks.

        Raises:
            IsolationError, SandboxError: as `repl_sandbox.Sandbox`.
        """
        warm_up(self.settings)
        if self.environment is None:
            self.tier = self.sandbox_provider.blocking_sandbox().tier
        self.telemetry.metrics.set_server(repl_env.__version__, self.tier)

    async def __aenter__(self) -> SessionManager:
        await asyncio.to_thread(self.prepare)
        self._sweeping = asyncio.create_task(self.sweeper.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.drain(0.0)
        await self.templates.close()
        self.uploads.close()
        await asyncio.to_thread(self.sandboxes.close)

    async def drain(self, within: float) -> None:
        """Accept nothing new, let running requests and uploads finish `within` seconds, then close.

        Other partial bodies are aborted: their requests would start something new. Sessions that
        are not closed CLOSE_S later are logged and left.
        """
        self.draining = True
        refusal = draining_error()
        self.admission.close(refusal)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                quiet = (session.wait_idle() for session in self.sessions)
                await asyncio.gather(self.inbound.wait_uploads(), *quiet)
        self.inbound.stop(refusal)
        for session in self.sessions:
            if session.sink is not None:
                session.sink.end(refusal.close or 1000, refusal.message)
        await self._close_all()

    async def _close_all(self) -> None:
        sessions = [each for each in self.sessions if each not in self._leaked]
        closing = {each.end("drain"): each for each in sessions}
        if closing:
            _, open_ = await asyncio.wait(closing, timeout=CLOSE_S)
            for each in open_:
                self._leaked.add(closing[each])
                self.telemetry.session_leaked(closing[each])

    def check_open(self) -> None:
        """Raise RequestError DRAINING if nothing new may begin."""
        if self.draining:
            raise draining_error()

    @property
    def has_playground(self) -> bool:
        """True if the playground is served, which sends code to sessions of `REPLEnvironment`."""
        return self.settings.has_playground and self.environment is None

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    @property
    def sessions(self) -> list[ServerSession]:
        """The open sessions."""
        return list(self._sessions.values())

    async def open(self, tenant: Tenant) -> ServerSession:
        """Open a session for `tenant`, waiting in the queue if the server is full.

        Raises:
            RequestError: QUOTA_EXCEEDED, CAPACITY_REACHED, DRAINING, FACTORY_ERROR.
        """
        self.check_open()
        began, meter = time.monotonic(), self.quotas.meter_of(tenant)
        with contextlib.ExitStack() as undo:
            await self._count_session(tenant, meter)
            undo.callback(meter.close_session)
            await self.admission.acquire()
            undo.callback(self.admission.release)
            making = self._make_adapter(tenant, meter)
            session = await self._start(tenant, meter, making, began)
            undo.pop_all()
        return session

    async def _count_session(self, tenant: Tenant, meter: UsageMeter) -> None:
        """Count one more session of `tenant`, waiting for sessions of the tenant that are closing.

        Raises:
            RequestError: QUOTA_EXCEEDED, DRAINING.
        """
        until = time.monotonic() + self.settings.wait_s
        while True:
            try:
                meter.open_session()
            except RequestError as refusal:
                mine = [each for each in self.sessions if each.tenant == tenant]
                ending = [each.end() for each in mine if each.closing]
                left = until - time.monotonic()
                if refusal.retry_after is not None or not ending or left <= 0:
                    raise
                await asyncio.wait(ending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                self.check_open()
            else:
                return

    async def branch(self, parent: ServerSession, seed: int | None) -> ServerSession:
        """Open a session that is a copy of `parent`, for another socket to resume.

        Raises:
            RequestError: as `open`, but without waiting in the queue.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as undo:
            await self._count_session(parent.tenant, parent.meter)
            undo.callback(parent.meter.close_session)
            self.admission.acquire_now()
            undo.callback(self.admission.release)
            making = parent.branch_environment(seed)
            session = await self._start(parent.tenant, parent.meter, making, began)
            undo.pop_all()
        session.start_grace_period()
        return session

    def find(self, tenant: Tenant, token: str) -> ServerSession:
        """The session that `token` identifies.

        Raises:
            RequestError: UNKNOWN_SESSION, also for a session of another tenant; DRAINING, while the
                server drains.
        """
        found = self._sessions.get(_name(token))
        if found is None or found.tenant != tenant or found.closing:
            self.check_open()
            raise RequestError("UNKNOWN_SESSION", "there is no such session, or it has ended")
        return found

    def forget(self, session: ServerSession) -> None:
        """Free the capacity of a closed session."""
        if self._sessions.pop(_name(session.token), None) is not None:
            self.admission.release()
            session.meter.close_session()
            self.telemetry.session_closed(session, session.ending)

    def new_cpu_accounting(self, session: ServerSession) -> CPUAccounting:
        """Start to account for the processes of an episode."""
        return CPUAccounting(session.tenant, session.meter, self.telemetry)

    async def metadata(self) -> EnvironmentMetadata:
        """The environment's metadata, as `MetadataCache.metadata`."""
        return await self._metadata_cache.metadata()

    async def find_tasks(self, method: str, *arguments: Any) -> Any:
        """Return what a method of `TaskProvider` of the environments returns.

        Raises:
            RequestError: NOT_SUPPORTED; UNKNOWN_TASK; EXECUTION_ERROR, the environment raised; as
                `EnvironmentFactory.briefly`.
        """
        if self.environment is None:
            raise tasks_unsupported(method)
        async with self._factory.briefly(always_admitted=False) as (environment, thread):
            return await found_tasks(environment, thread, method, arguments)

    async def _start(
        self,
        tenant: Tenant,
        meter: UsageMeter,
        making: Awaitable[EnvironmentAdapter],
        began: float,
    ) -> ServerSession:
        try:
            session = ServerSession(self, tenant, meter, await making)
        except (RequestError, REPLError):
            raise
        # Boundary: only the operator, in the log, sees the error of a factory.
        except Exception as error:  # noqa: BLE001
            raise factory_error(error) from None
        self._sessions[_name(session.token)] = session
        self.telemetry.session_opened(session, time.monotonic() - began)
        return session

    async def _make_adapter(self, tenant: Tenant, meter: UsageMeter) -> EnvironmentAdapter:
        uploads = TenantUploads(tenant, self.uploads, self.templates)
        if self.environment is not None:
            made, thread = await self._factory.make()
            if not isinstance(made, REPLEnvironment):
                return CustomAdapter(made, thread, uploads)
            thread.end()
            return REPLAdapter(made, self.settings, uploads)
        environment = REPLEnvironment()
        environment.settings = self.settings.episodes
        environment.use_sandbox_provider(self.sandbox_provider)
        calls = SessionSubcalls(self.settings, meter, self.telemetry)
        return REPLAdapter(environment, self.settings, uploads, calls)


def _name(token: str) -> bytes:
    # Looked up by its hash, so that the time of a lookup reveals nothing about the token.
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _sandbox_settings(settings: Settings) -> SandboxSettings:
    return SandboxSettings(
        isolation=settings.isolation,
        require=settings.require,
        image=settings.image,
        runtime=settings.runtime,
        python=settings.python,
        mounts=settings.mounts,
        limits=settings.limits,
        preload=settings.preload,
        policy=settings.policy,
        recovery=settings.recovery,
        ready=settings.ready,
        history=settings.undoable,
        fair_share=settings.fair_share,
    )

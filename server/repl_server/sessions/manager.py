"""`SessionManager`: opens, finds, drains and ends the sessions of a server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Container
from typing import Any

from pydantic import BaseModel

from repl_env.env.environment import REPLEnvironment
from repl_env.episode.sandbox_provider import SandboxProvider, SandboxRegistry, SandboxSettings
from repl_env.errors import REPLError
from repl_env.interfaces import EnvironmentMetadata

from ..limits.receive_buffers import ReceiveBuffers
from ..protocol.json_codec import JSONCodec
from ..protocol.request_error import RequestError, draining_error
from ..quotas.usage_meters import QuotaRegistry, UsageMeter
from ..settings import Settings
from ..subcalls.session_subcalls import SessionSubcalls, warm_up
from ..telemetry.recorder import Telemetry
from ..tenants.client_address import is_loopback
from ..tenants.tenant import Tenant
from ..uploads.shared_templates import SharedTemplates
from ..uploads.tenant_uploads import TenantUploads
from ..uploads.upload_quota import UploadQuota
from ..uploads.upload_store import UploadStore
from .cpu_accounting import CPUAccounting
from .environments.custom_adapter import CustomAdapter
from .environments.environment_adapter import EnvironmentAdapter
from .environments.environment_factory import EnvironmentFactory, factory_error
from .environments.environment_metadata import MetadataCache
from .environments.repl_adapter import REPLAdapter
from .request_handlers import HANDLERS
from .scheduler import RequestScheduler
from .server_session import Handler, ServerSession
from .session_sweeper import SessionSweeper
from .session_turn import TURN, hold

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
        self.telemetry.metrics.set_gauge("sessions_open", lambda: self.admission.open)
        self.telemetry.metrics.set_gauge("sessions_waiting", lambda: self.admission.waiting)
        self.telemetry.metrics.set_gauge("requests_waiting", lambda: len(self.scheduler))
        uploaded = UploadQuota(settings.uploads_bytes, self.quotas.meter_of)
        self.telemetry.metrics.set_gauge("uploaded_bytes", lambda: uploaded.used)
        self.uploads = UploadStore(settings, uploaded)
        self.templates = SharedTemplates(uploaded)
        self.json_codec = JSONCodec()
        self.sandboxes = SandboxRegistry()
        self.sandbox_provider = SandboxProvider(None, _sandbox_settings(settings), self.sandboxes)
        self.handlers: dict[str, Handler] = {**HANDLERS, TURN: hold}
        self._sessions: dict[bytes, ServerSession] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self.draining = False
        self._leaked: set[ServerSession] = set()  # not closed in time
        self.sweeper = SessionSweeper(
            settings, keys, lambda: self.sessions, (self.templates.sweep, self.uploads.sweep)
        )

    # ── life cycle ───────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Import libraries and start the sandbox, as far as they are needed. Blocks.

        Raises:
            IsolationError, SandboxError: as `repl_sandbox.Sandbox`.
        """
        warm_up(self.settings)
        if self.environment is None:
            self.sandbox_provider.blocking_sandbox()

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
        meter = self.quotas.meter_of(tenant)
        with contextlib.ExitStack() as undo:
            await self._count_session(tenant, meter)
            undo.callback(meter.close_session)
            await self.admission.acquire()
            undo.callback(self.admission.release)
            session = await self._start(tenant, meter, self._make_adapter(tenant, meter))
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
        with contextlib.ExitStack() as undo:
            await self._count_session(parent.tenant, parent.meter)
            undo.callback(parent.meter.close_session)
            self.admission.acquire_now()
            undo.callback(self.admission.release)
            session = await self._start(
                parent.tenant, parent.meter, parent.branch_environment(seed)
            )
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

    async def _start(
        self, tenant: Tenant, meter: UsageMeter, making: Awaitable[EnvironmentAdapter]
    ) -> ServerSession:
        try:
            session = ServerSession(self, tenant, meter, await making)
        except (RequestError, REPLError):
            raise
        # Boundary: only the operator, in the log, sees the error of a factory.
        except Exception as error:  # noqa: BLE001
            raise factory_error(error) from None
        self._sessions[_name(session.token)] = session
        self.telemetry.session_opened(session)
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

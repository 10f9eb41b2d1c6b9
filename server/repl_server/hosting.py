"""`Host`: the sessions of a server, from their opening to their end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from repl_env.environment import REPLEnvironment
from repl_env.errors import REPLError
from repl_env.interfaces import EnvironmentMetadata
from repl_env.refusals import DOES_NOT_READ, IDLE, OVER_QUOTA
from repl_env.sandboxes import Sandboxes, SandboxSettings, Source

from .calls import SessionCalls, warm_up
from .cpu_accounts import CPUAccount
from .describing import Description
from .episodes import Episodes
from .foreign_episodes import ForeignEpisodes
from .hosted import HostedSession
from .limits.inbound import Inbound
from .making import Maker, not_made
from .mcp.answers import Answers
from .owners import Owner
from .quotas import Meter, Quotas
from .reading import Reading
from .refusal import Refusal, draining
from .repl_episodes import REPLEpisodes
from .settings import Settings
from .slots import Slots
from .uploads.quota import UploadQuota
from .uploads.resets import OwnedUploads
from .uploads.store import Uploads
from .uploads.templates import Templates
from .watching import Watch

logger = logging.getLogger("repl_server")

# Seconds between two looks for sessions that nobody uses any more, at most.
_LOOK = 1.0
_LOOK_SOON = 0.01
# Seconds in which a client is to come back where its protocol has it do so at once: one that has
# gone before it learnt of its session never will.
INTRODUCTION_S = 30.0
# Seconds that all sessions have to be closed in at the end. Only an environment of others takes
# longer, which hangs in its thread, that nobody can end, or on the loop and heeds nothing.
CLOSE_S = 10.0
# Sessions whose processes are looked at then, in turn; each takes a tenth of a millisecond.
_CPU_LOOKS = 32


class Host:
    """What serves sessions. A context manager: its sessions and sandbox end with it.

    Args:
        settings: of the server.
        environment: makes an environment for each session; None: `REPLEnvironment`, with sessions
            from a sandbox of the host's own.
        action, observation, state: the models of what goes in and out.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environment: Callable[[], Any] | None = None,
        action: type[BaseModel],
        observation: type[BaseModel],
        state: type[BaseModel],
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.action, self.observation, self.state_model = action, observation, state
        self._maker = Maker(environment or REPLEnvironment, settings)
        self._description = Description(self._maker)
        self.admission = self._maker.admission
        self.quotas = Quotas(settings)
        self.inbound = Inbound(settings)
        self.slots = Slots()
        self.watch = Watch(contents=settings.log_contents)
        self.watch.metrics.watch("sessions_open", lambda: self.admission.open)
        self.watch.metrics.watch("sessions_waiting", lambda: self.admission.waiting)
        self.watch.metrics.watch("requests_waiting", lambda: len(self.slots))
        uploaded = UploadQuota(settings.uploads_bytes, self.quotas.of)
        self.watch.metrics.watch("uploaded_bytes", lambda: uploaded.taken)
        self.uploads = Uploads(settings, uploaded)
        self.templates = Templates(uploaded)
        self.reading = Reading()
        self.sandboxes = Sandboxes()
        self.source = Source(None, _sandbox_settings(settings), self.sandboxes)
        self.mcp = Answers(self)
        self._sessions: dict[bytes, HostedSession] = {}
        self._looking: asyncio.Task[None] | None = None
        self.draining = False
        self._held: set[HostedSession] = set()  # they were not closed in time, at the end
        self._turn = 0
        self.looks = 0  # for sessions that nobody uses, so far

    # ── its own life ─────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Load libraries and start the sandbox, if they will be needed. Blocks.

        Raises:
            IsolationError, SandboxError: as `repl_sandbox.Sandbox`.
        """
        warm_up(self.settings)
        if self.environment is None:
            self.source.plain()

    async def __aenter__(self) -> Host:
        await asyncio.to_thread(self.prepare)
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.drain(0.0)
        await self.templates.close()
        self.uploads.close()
        await asyncio.to_thread(self.sandboxes.close)

    async def drain(self, within: float) -> None:
        """Begin nothing new, let running requests end within so many seconds, close everything.

        Uploads that come in are among them. Other bodies are not: what they ask for would be new.

        What cannot be closed in CLOSE_S more is left, and told to the log.
        """
        self.draining = True
        refusal = draining()
        self.admission.close(refusal)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                quiet = (session.quiet() for session in self.sessions)
                await asyncio.gather(self.inbound.uploaded(), *quiet)
        self.inbound.end(refusal)
        for session in self.sessions:
            if session.outlet is not None:
                session.outlet.end(refusal.close or 1000, refusal.message)
        await self._close_all()

    async def _close_all(self) -> None:
        sessions = [each for each in self.sessions if each not in self._held]
        closing = {each.end("drain"): each for each in sessions}
        if closing:
            _, open_ = await asyncio.wait(closing, timeout=CLOSE_S)
            for each in open_:
                self._held.add(closing[each])
                self.watch.session_held(closing[each])

    def check_open(self) -> None:
        """Raises Refusal DRAINING if nothing new may begin."""
        if self.draining:
            raise draining()

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    @property
    def sessions(self) -> list[HostedSession]:
        """Those that are open."""
        return list(self._sessions.values())

    async def open(self, owner: Owner) -> HostedSession:
        """A new session for `owner`, which may have to wait in line.

        Raises:
            Refusal: QUOTA_EXCEEDED, CAPACITY_REACHED, DRAINING, FACTORY_ERROR.
        """
        self.check_open()
        meter = self.quotas.of(owner)
        with contextlib.ExitStack() as undo:
            await self._count(owner, meter)
            undo.callback(meter.close_session)
            await self.admission.enter()
            undo.callback(self.admission.leave)
            session = await self._begun(owner, meter, self._episodes(owner, meter))
            undo.pop_all()
        return session

    async def _count(self, owner: Owner, meter: Meter) -> None:
        """Count one more session of `owner`. One that ends may take its time, and is waited for.

        Raises:
            Refusal: QUOTA_EXCEEDED, DRAINING.
        """
        until = time.monotonic() + self.settings.wait_s
        while True:
            try:
                meter.open_session()
            except Refusal as refusal:
                mine = [each for each in self.sessions if each.owner == owner]
                ending = [each.end() for each in mine if each.closing]
                left = until - time.monotonic()
                if refusal.retry_after is not None or not ending or left <= 0:
                    raise
                await asyncio.wait(ending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                self.check_open()
            else:
                return

    async def branch(self, parent: HostedSession, seed: int | None) -> HostedSession:
        """A session that is a copy of `parent`, to be resumed by a socket of its own.

        Raises:
            Refusal: as `open`, without standing in line.
        """
        with contextlib.ExitStack() as undo:
            await self._count(parent.owner, parent.meter)
            undo.callback(parent.meter.close_session)
            self.admission.enter_now()
            undo.callback(self.admission.leave)
            session = await self._begun(parent.owner, parent.meter, parent.branched(seed))
            undo.pop_all()
        session.keep()
        return session

    def find(self, owner: Owner, token: str) -> HostedSession:
        """The session that `token` names.

        Raises:
            Refusal: UNKNOWN_SESSION; whether it is another owner's is not told. DRAINING, if it
                may have been one that ended so.
        """
        found = self._sessions.get(_name(token))
        if found is None or found.owner != owner or found.closing:
            self.check_open()
            raise Refusal("UNKNOWN_SESSION", "there is no such session, or it has ended")
        return found

    def gone(self, session: HostedSession) -> None:
        """A session has closed; its room is free."""
        if self._sessions.pop(_name(session.token), None) is not None:
            self.admission.leave()
            session.meter.close_session()
            self.watch.session_closed(session, session.ending)

    def cpu_account(self, session: HostedSession) -> CPUAccount:
        """An account for the processes of an episode."""
        return CPUAccount(session.owner, session.meter, self.watch)

    async def metadata(self) -> EnvironmentMetadata:
        """What an environment says about itself, as `Description.metadata`."""
        return await self._description.metadata()

    async def _begun(
        self, owner: Owner, meter: Meter, making: Awaitable[Episodes]
    ) -> HostedSession:
        try:
            session = HostedSession(self, owner, meter, await making)
        except (Refusal, REPLError):
            raise
        # Boundary: whatever a factory raises is the operator's to read, in the log.
        except Exception as error:  # noqa: BLE001
            raise not_made(error) from None
        self._sessions[_name(session.token)] = session
        self.watch.session_opened(session)
        return session

    async def _episodes(self, owner: Owner, meter: Meter) -> Episodes:
        uploads = OwnedUploads(owner, self.uploads, self.templates)
        if self.environment is not None:
            made, thread = await self._maker.make()
            if not isinstance(made, REPLEnvironment):
                return ForeignEpisodes(made, thread, uploads)
            thread.end()
            return REPLEpisodes(made, self.settings, uploads)
        environment = REPLEnvironment()
        environment.settings = self.settings.episodes
        environment.take_from(self.source)
        calls = SessionCalls(self.settings, meter, self.watch)
        return REPLEpisodes(environment, self.settings, uploads, calls)

    # ── the end of what nobody uses ──────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        settings = self.settings
        shortest = min(settings.idle_s, settings.grace_s, settings.send_s)
        while True:
            await asyncio.sleep(min(_LOOK, max(_LOOK_SOON, shortest / 4)))
            self.looks += 1
            now = time.monotonic()
            for session in self.sessions:
                self._look_at(session, now)
            self._look_at_cpu()
            self.templates.sweep()
            self.uploads.sweep()

    def _look_at(self, session: HostedSession, now: float) -> None:
        settings, outlet = self.settings, session.outlet
        blocked = None if outlet is None else outlet.blocked_since
        if outlet is not None and blocked is not None and now - blocked > 2 * settings.send_s:
            # `bounded` sees how fast a client reads, and acts first; other servers do not.
            outlet.end(DOES_NOT_READ, "what was sent was not read")
        if session.awaited:
            return
        touched = session.touched
        longest = settings.idle_s if session.known else min(settings.idle_s, INTRODUCTION_S)
        if now - touched > longest:
            if outlet is not None:
                outlet.end(IDLE, "the session was idle for too long")
            session.end("idle")
        elif session.left is not None and now - max(session.left, touched) > settings.grace_s:
            session.end("grace")

    def _look_at_cpu(self) -> None:
        """End sessions that go on by themselves while their owner's CPU time is used up."""
        sessions = self.sessions
        for _ in range(min(_CPU_LOOKS, len(sessions))):
            self._turn += 1
            session = sessions[self._turn % len(sessions)]
            if session.look_at_cpu() and not session.busy and session.meter.owes_cpu:
                if session.outlet is not None:
                    session.outlet.end(OVER_QUOTA, "its processes used up the CPU time")
                session.end("quota")


def _name(token: str) -> bytes:
    # Compared by its hash: how long the search takes says nothing about the token.
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _sandbox_settings(settings: Settings) -> SandboxSettings:
    return SandboxSettings(
        isolation=settings.isolation,
        require=settings.require,
        image=settings.image,
        runtime=settings.runtime,
        limits=settings.limits,
        preload=settings.preload,
        policy=settings.policy,
        recovery=settings.recovery,
        ready=settings.ready,
        yielding=settings.yielding,
    )

"""`ServerSession`: one environment that a client plays, one request at a time.

It outlives the sockets that bring its requests. A reply goes to everybody who pending for it, and the
last one is kept, so that a request sent earlier over another socket is not run earlier.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from repl_env.client.protocol.refusal_codes import TAKEN_OVER
from repl_env.errors import EpisodeAborted

from ..protocol.error_mapping import request_error_of, server_fault
from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.json_codec import JSONCodec
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError, draining_error
from ..protocol.validation import validation_error
from ..quotas.usage_meters import UsageMeter
from ..settings import Settings
from ..telemetry.recorder import Telemetry
from ..tenants.tenant import Tenant
from .cpu_accounting import CPUAccounting, seconds_of
from .environments.environment_adapter import EnvironmentAdapter
from .request_queue import PendingRequest, ReplySink, RequestQueue, cancelled_reply
from .scheduler import RequestScheduler

# What nobody may begin any more on a server that drains.
_BEGINS = frozenset({"reset", "step", "follow_up", "branch"})
# A request that was refused so was not begun, and may be sent earlier under its id.
_NOT_RUN = frozenset({"RATE_LIMITED", "QUOTA_EXCEEDED"})


# Answers one type of request. An exception that it raises becomes the error reply.
Handler: TypeAlias = Callable[
    ["ServerSession", PendingRequest, ClientRequest], Awaitable[ServerReply]
]


class SessionServices(Protocol):
    """The parts of the session manager that a session uses."""

    settings: Settings
    telemetry: Telemetry
    scheduler: RequestScheduler
    json_codec: JSONCodec
    handlers: dict[str, Handler]

    def check_open(self) -> None:
        """Raise RequestError DRAINING if nothing new may begin."""

    def new_cpu_accounting(self, session: ServerSession) -> CPUAccounting:
        """Account for the processes of a new episode."""

    async def branch(self, parent: ServerSession, seed: int | None) -> ServerSession:
        """Open a session that is a copy of `parent`."""

    def forget(self, session: ServerSession) -> None:
        """Free the capacity of a closed session."""


class ServerSession:
    """A session of `tenant`.

    Attributes:
        id: its name in logs.
        token: what its client knows it by; a secret.
        sink: the socket that holds it; None for none.
        touched: when it was last pending for something, by `time.monotonic`.
        left: when its socket went; None while it has one, or if it never had.
        known: whether its client has shown that it knows of it, where clients are to.
        ending: why it ends, by one of `metrics.ENDINGS`.
        cpu: the account of its processes.
        manager: the server's.
        adapter: its environment, for whoever runs its requests.
    """

    def __init__(
        self,
        manager: SessionServices,
        tenant: Tenant,
        meter: UsageMeter,
        adapter: EnvironmentAdapter,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(24)
        self.tenant, self.meter = tenant, meter
        self.sink: ReplySink | None = None
        self.touched = time.monotonic()
        self.left: float | None = None
        self.known = True
        self._resumable = False  # it ends a grace time after its socket went
        self.ending = "closed"
        self.cpu = manager.new_cpu_accounting(self)
        self.manager = manager
        self.adapter = adapter
        self._queue = RequestQueue()
        self._slot = manager.scheduler.slot()
        self._last: PendingRequest | None = None
        self._running: PendingRequest | None = None
        self._delivering: PendingRequest | None = None  # its reply is on its way
        self._stepping = False
        self._cancelled: PendingRequest | None = None
        self._runner = asyncio.create_task(self._run())
        self._closing: asyncio.Task[None] | None = None

    # ── what sockets and routes call ─────────────────────────────────────────────────────────────

    @property
    def running(self) -> str | None:
        """The id of the request that runs; None if none does, or it has none."""
        return None if self._running is None else self._running.request.id

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return self._running is not None or len(self._queue) > 0

    @property
    def awaited(self) -> bool:
        """Whether somebody is there for what runs or waits."""
        running = () if self._running is None else (self._running,)
        return any(not sink.gone for pending in (*running, *self._queue) for sink in pending.sinks)

    @property
    def closing(self) -> bool:
        """Whether it ends, or has ended."""
        return self._closing is not None

    def facts(self, *, resumed: bool) -> dict[str, Any]:
        """What a client is sinks of it when its socket begins."""
        settings = self.manager.settings
        return {
            "session_id": self.id,
            "token": self.token,
            "resumed": resumed,
            "grace_s": settings.grace_s,
            "running": self.running,
            "limits": {
                "timeout_s": settings.limits.timeout,
                "max_timeout_s": settings.longest_step_s,
                "message_bytes": settings.largest_message,
                "context_bytes": settings.context_bytes,
                "idle_s": settings.idle_s,
            },
        }

    def submit(self, request: ClientRequest | InvalidFrame, sink: ReplySink) -> None:
        """Have `request` answered to `to`, after those before it."""
        self.touched, self.known = time.monotonic(), True
        earlier = None if request.id is None else self._earlier_request(request.id)
        if earlier is None:
            self._queue.add(PendingRequest(request, sink))
        elif earlier.reply is None:
            earlier.add_sink(sink)
        else:
            self._queue.add(PendingRequest(earlier.request, sink, earlier.reply))

    @property
    def queued(self) -> int:
        """How many requests wait behind the one that runs."""
        return len(self._queue)

    @property
    def accepts_more(self) -> bool:
        """Whether more may be pending now."""
        return not self._queue.full

    async def wait_for_space(self) -> None:
        """Wait until it has."""
        await self._queue.wait_for_space()

    async def cancel(self, id: str) -> bool:
        """End the request `id` early; whether it runs, or waits to."""
        running = self._running
        if running is None or running.request.id != id:
            return self._queue.cancel(id)
        if self._slot.waits:
            self._abandon(running)
        elif await self.adapter.interrupt():
            # What does not heed the interrupt is left, and what ran is ended behind it.
            grace = float(self.manager.settings.limits.grace)
            asyncio.get_running_loop().call_later(grace, self._abandon, running)
        return True

    def start_grace_period(self) -> None:
        """Keep it for a socket that will resume it, for as long as a grace time."""
        self.left, self._resumable = time.monotonic(), True

    def attach(self, sink: ReplySink, *, resumable: bool = False) -> None:
        """Make `sink` the socket that holds this session; another that does is closed.

        `resumable`: from now on the session ends a grace time after its socket went.
        """
        before, self.sink, self.left = self.sink, sink, None
        self._resumable |= resumable
        self.touched = time.monotonic()
        if before is not None and before is not sink:
            self._queue.remove_sink(before)
            before.end(TAKEN_OVER, "the session was resumed by another socket")

    def detach(self, sink: ReplySink) -> None:
        """The socket has gone. What it pending for and was not begun is forgotten."""
        if self.sink is sink:
            self.sink, self.left = None, time.monotonic()
            self._queue.remove_sink(sink)
            self.manager.telemetry.session_left(self)

    def detach_guest(self, sink: ReplySink) -> None:
        """A socket that was added to the session has gone; the session stays as before it came.

        That is: until it is idle, or to be resumed.
        """
        if self.sink is sink:
            self.sink, self.left = None, time.monotonic() if self._resumable else None
            self._queue.remove_sink(sink)

    async def reset(self, data: Any) -> Any:
        """Begin an episode, which is counted; its observation. For whoever runs its requests."""
        began = time.monotonic()
        async with self._slot:
            self.account_cpu()
            observation = await self.adapter.reset(data)
            self.cpu = self.manager.new_cpu_accounting(
                self
            )  # of other processes; a refusal leaves them
        self.manager.telemetry.reset(self, time.monotonic() - began)
        return observation

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Take an action, which is counted; its observation. Likewise."""
        if timeout_s is not None and timeout_s > (longest := self.manager.settings.longest_step_s):
            raise validation_error("timeout_s", f"at most {longest:g} seconds", "less_than_equal")
        self.meter.step()
        began, scheduler, slot = time.monotonic(), self.manager.scheduler, self._slot
        # As `async with slot`, which runs two coroutines more.
        if not scheduler.take(slot):
            await scheduler.wait(slot)
        self._stepping = True
        try:
            observation = await self.adapter.step(action, timeout_s, on_output)
        finally:
            self._stepping = False
            scheduler.give_back(slot)
        self.cpu.add_step(seconds_of(observation))
        self.manager.telemetry.step(self, action, observation, time.monotonic() - began)
        return observation

    def account_cpu(self) -> bool:
        """Book what its processes used; whether some are busy beside its steps."""
        if not self.meter.counts_cpu:
            return False  # nobody asks, and a look takes longer than a short step
        total = self.adapter.cpu_seconds
        return total is not None and self.cpu.observe(total)

    async def branch_environment(self, seed: int | None) -> EnvironmentAdapter:
        """A copy of its environment. For whoever runs its requests."""
        return await self.adapter.branch(seed)

    async def wait_idle(self) -> None:
        """Wait until no request runs and all replies were sent, or it has ended."""
        await self._queue.wait_idle()

    def ended_error(self, code: str) -> RequestError:
        """What is sinks of its end: `code`, unless all sessions end."""
        return (
            draining_error()
            if self.ending == "drain"
            else RequestError(code, "the session has ended")
        )

    def end(self, why: str = "closed") -> asyncio.Task[None]:
        """Begin to close it; the task is done when nothing of it is left."""
        if self._closing is None:
            self.ending = why
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def close(self, why: str = "closed") -> None:
        """End it and everything that it holds."""
        await asyncio.shield(self.end(why))

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while self._closing is None:  # the end may have come amid what does not heed it
            pending = await self._queue.take()
            if pending.reply is None:
                self._running, before = pending, self._last
                if pending.request.id is not None:
                    self._last = pending
                pending.reply = await self._reply(pending)
                if pending.reply.refusal is not None and pending.reply.refusal.code in _NOT_RUN:
                    self._last = before
                self._running = None
            self.touched = time.monotonic()
            self._delivering = pending
            await pending.sink.deliver(pending.request.id, pending.reply)
            for sink in reversed(pending.earlier_sinks):
                await sink.deliver(pending.request.id, pending.reply)
            self._delivering = None

    async def _reply(self, pending: PendingRequest) -> ServerReply:
        request = pending.request
        if isinstance(request, InvalidFrame):
            return ServerReply.of_error(request.refusal)
        try:
            if self._closing is not None:
                raise self.ended_error("UNKNOWN_SESSION")
            if request.type in _BEGINS:
                self.manager.check_open()
            return await self.manager.handlers[request.type](self, pending, request)
        except asyncio.CancelledError:
            if not self._recall(pending):
                raise
            return cancelled_reply()
        # Boundary: whatever an environment raises is its client's to know, as a refusal.
        except Exception as error:  # noqa: BLE001
            if self._closing is not None and isinstance(error, EpisodeAborted):
                # Its session was taken from under it, by `_close`: no fault for the log.
                return ServerReply.of_error(self.ended_error("EPISODE_ABORTED"))
            return ServerReply.of_error(request_error_of(error))
        finally:
            if self._cancelled is not None:
                self._recall(pending)  # of what did not heed it

    # ── the parts ────────────────────────────────────────────────────────────────────────────────

    def _earlier_request(self, id: str) -> PendingRequest | None:
        """The request of this id, if it is the last one or one that waits."""
        if self._last is not None and self._last.request.id == id:
            return self._last
        return self._queue.find(id)

    def _abandon(self, pending: PendingRequest) -> None:
        """Give up on what runs, unless it has a result that waits for a slow reader."""
        early = self._stepping or self._slot.waits
        if self._running is pending and early and self._closing is None:
            self._cancelled = pending
            self._runner.cancel()

    def _recall(self, pending: PendingRequest) -> bool:
        """Take back what `_leave` did to `pending`; whether it did, and nobody else ends it."""
        left, self._cancelled = self._cancelled is pending, None
        return left and self._runner.uncancel() == 0

    def _notify_sinks(self) -> None:
        """Whoever waits for a reply, or holds the session, learns that there is none any more."""
        pending = (*self._queue, *filter(None, [self._running, self._delivering]))
        sinks = [sink for each in pending for sink in each.sinks]
        if self.sink is not None:
            sinks.append(self.sink)
        if sinks:
            ended = self.ended_error("UNKNOWN_SESSION")
            for sink in sinks:
                sink.end(ended.close or 1000, ended.message)

    async def _close(self) -> None:
        try:
            self.account_cpu()
            if self._stepping:
                # Its session is taken from under it, which is quicker than to wait for its end.
                await self.adapter.cut_off()
            self._runner.cancel()
            await asyncio.wait([self._runner])
            self._notify_sinks()
            await self.adapter.close()
        # Boundary: a session must not stay in the books because its environment breaks at its end.
        except Exception as error:  # noqa: BLE001
            server_fault("SESSION_ERROR", "closing", error)
        finally:
            # It is part of cycles, and may be collected late; replies may be large.
            self._last = self._running = self._delivering = None
            self._queue.end()  # whoever waits for it to be quiet
            self.manager.forget(self)

"""`ServerSession`: one environment on the server, which serves one request at a time.

A session outlives the sockets that carry its requests. A reply goes to every socket that sent the
request. The last reply is kept, so that a request which the client repeats does not run twice.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from repl_env.client.protocol import TAKEN_OVER
from repl_env.errors import EpisodeAborted

from .environments import EnvironmentAdapter
from .json_codec import JSONCodec
from .protocol import (
    ClientRequest,
    InvalidFrame,
    ServerReply,
    request_error_of,
    server_fault,
    validation_error,
)
from .quotas import UsageMeter
from .scheduler import RequestScheduler
from .settings import Settings
from .telemetry import Telemetry
from .tenants import RequestError, Tenant, draining_error, socket_closed_error

# `CPUAccounting`: charges the CPU time of a session's processes to its tenant, once.

# CPU seconds between two observations that do not count as busy: work after a step, and rounding.
_IDLING = 0.02


class CPUAccounting:
    """The CPU time of a session's processes, including those of its branches.

    Each step reports the usage of its own process. Observations of all processes find the usage of
    child processes, and of threads that run between steps.
    """

    def __init__(self, tenant: Tenant, meter: UsageMeter, telemetry: Telemetry) -> None:
        self._tenant, self._meter, self._metrics = tenant, meter, telemetry.metrics
        self._is_limited = meter.counts_cpu
        self._booked = 0.0

    def add_step(self, seconds: float) -> None:
        """Charge the usage that a step reported."""
        self._booked += seconds
        self._book(seconds)

    def observe(self, total: float) -> bool:
        """Charge the rest of `total`, the usage of all processes so far; whether any were busy."""
        more = total - self._booked
        if more <= 0:
            return False
        self._booked = total
        self._book(more)
        return more > _IDLING

    def _book(self, seconds: float) -> None:
        if self._is_limited:
            self._meter.spend_cpu(seconds)
        self._metrics.cpu(self._tenant, seconds)


def seconds_of(observation: Any) -> float:
    """The CPU time that an observation reports; custom environments may report anything."""
    usage = observation.metadata.get("usage")
    seconds = usage.get("cpu_seconds") if isinstance(usage, dict) else None
    return seconds if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf else 0.0


# `RequestQueue`: the pending requests of a session, and the sinks of their replies.

# Pending requests of one session, and characters of these and the running one. Above either limit
# the socket is not read, and the limits on received bytes apply.
_MOST_WAITING = 16
_MOST_SIZE = 1 << 20


class ReplySink(Protocol):
    """The destination of replies: a socket, or one HTTP response."""

    @property
    def gone(self) -> bool:
        """True if the client has left."""

    @property
    def blocked_since(self) -> float | None:
        """Start of the current wait for the client to read (`time.monotonic`), or None."""

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """Send a reply. Does not raise if the client has left."""

    def end(self, code: int, reason: str) -> None:
        """Close the destination without waiting."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request, its reply once there is one, and the sinks that wait for the reply.

    The client may send the same request over several sockets: `sink` is the latest, which gets
    streamed output too; `earlier_sinks` get the reply only.
    """

    request: ClientRequest | InvalidFrame
    sink: ReplySink
    reply: ServerReply | None = None
    earlier_sinks: tuple[ReplySink, ...] = ()

    @property
    def sinks(self) -> tuple[ReplySink, ...]:
        """All sinks that wait for the reply."""
        return (*self.earlier_sinks, self.sink)

    def add_sink(self, sink: ReplySink) -> None:
        """Deliver the reply to `sink` too."""
        self.earlier_sinks = tuple(
            each for each in self.sinks if each is not sink and not each.gone
        )
        self.sink = sink

    def remove_sink(self, sink: ReplySink) -> bool:
        """Remove a sink; False if no other waits."""
        others = tuple(each for each in self.sinks if each is not sink)
        if others:
            *earlier_sinks, self.sink = others
            self.earlier_sinks = tuple(earlier_sinks)
        return bool(others)


class RequestQueue:
    """Pending requests of one session in order of arrival, for one consumer.

    Attributes:
        full: a limit is exceeded, and the socket should not be read.
    """

    def __init__(self) -> None:
        self.full = False
        self._waiting: deque[PendingRequest] = deque()
        self._size = 0
        self._running_size = 0  # size of the request that the consumer works on
        self._taker: asyncio.Future[None] | None = None  # the consumer, while the queue is empty
        self._space = asyncio.Event()  # set when the queue is no longer full
        self._idle: asyncio.Event | None = None  # of `wait_idle`
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(tuple(self._waiting))

    async def wait_for_space(self) -> None:
        """Wait until the queue is not full."""
        if self.full:
            await self._space.wait()

    async def wait_idle(self) -> None:
        """Wait until the queue is empty and its consumer waits, or has ended."""
        if self._ended or (self._taker is not None and not self._waiting):
            return
        self._idle = self._idle or asyncio.Event()
        await self._idle.wait()

    def end(self) -> None:
        """The consumer has ended."""
        self._ended = True
        self._notify_idle()

    def add(self, pending: PendingRequest) -> None:
        """Append a request."""
        self._waiting.append(pending)
        self._size += pending.request.size
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
        if not self._has_space():
            self.full = True
            self._space.clear()

    async def take(self) -> PendingRequest:
        """Wait for the next request; the consumer is done with the previous one."""
        self._size -= self._running_size
        self._running_size = 0
        if self.full and self._has_space():
            self._reopen()
        while not self._waiting:
            self._notify_idle()
            self._taker = asyncio.get_running_loop().create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        pending = self._waiting.popleft()
        self._running_size = pending.request.size
        return pending

    def find(self, id: str) -> PendingRequest | None:
        """The pending request with this id."""
        return next((each for each in self._waiting if each.request.id == id), None)

    def cancel(self, id: str) -> bool:
        """Cancel the pending request with this id; False if there is none."""
        pending = self.find(id)
        if pending is None or pending.reply is not None:
            return False
        pending.reply = cancelled_reply()
        return True

    def remove_sink(self, sink: ReplySink) -> None:
        """Remove `sink`, and requests whose replies no other sink waits for."""
        self._waiting = deque(each for each in self._waiting if each.remove_sink(sink))
        self._size = self._running_size + sum(each.request.size for each in self._waiting)
        self._reopen()

    def _reopen(self) -> None:
        self.full = False
        self._space.set()

    def _notify_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def _has_space(self) -> bool:
        return len(self._waiting) < _MOST_WAITING and self._size < _MOST_SIZE


def cancelled_reply() -> ServerReply:
    """The reply to a cancelled request."""
    return ServerReply.of_error(RequestError("EXECUTION_ERROR", "cancelled by the client"))


# `RequestRunner`: performs the requests of one session, one after the other.

# Errors of requests that were not started; the client may send such a request again with its id.
_NOT_RUN = frozenset({"RATE_LIMITED", "QUOTA_EXCEEDED"})


class RequestRunner:
    """Pending requests and the task that performs them and delivers their replies.

    The last reply is kept, so that a request which the client repeats does not run twice.

    Attributes:
        queue: the pending requests.
        running: the request that is being performed, or None.
        closing: no further request begins.
    """

    def __init__(self, perform: Callable[[PendingRequest], Awaitable[ServerReply]]) -> None:
        self.queue = RequestQueue()
        self.running: PendingRequest | None = None
        self.closing = False
        self._perform = perform
        self._last: PendingRequest | None = None
        self._delivering: PendingRequest | None = None  # its reply is being sent
        self._cancelled: PendingRequest | None = None
        self._task = asyncio.create_task(self._run())

    def submit(self, request: ClientRequest | InvalidFrame, sink: ReplySink) -> None:
        """Queue a request; its reply, possibly that of an earlier request, goes to `sink`."""
        earlier = None if request.id is None else self._earlier(request.id)
        if earlier is None:
            self.queue.add(PendingRequest(request, sink))
        elif earlier.reply is None:
            earlier.add_sink(sink)
        else:
            self.queue.add(PendingRequest(earlier.request, sink, earlier.reply))

    @property
    def awaited(self) -> bool:
        """True if a client waits for a running or pending request."""
        running = () if self.running is None else (self.running,)
        return any(not sink.gone for pending in (*running, *self.queue) for sink in pending.sinks)

    @property
    def sinks(self) -> list[ReplySink]:
        """The receivers of all replies that are not delivered yet."""
        pending = (*self.queue, *filter(None, [self.running, self._delivering]))
        return [sink for each in pending for sink in each.sinks]

    @property
    def cancelled(self) -> bool:
        """True if a cancellation by `abandon` has not been handled yet."""
        return self._cancelled is not None

    def abandon(self, pending: PendingRequest) -> None:
        """Cancel `pending` if it is running."""
        if self.running is pending:
            self._cancelled = pending
            self._task.cancel()

    def recall(self, pending: PendingRequest) -> bool:
        """Undo the cancellation by `abandon`; False if another cancellation is pending."""
        mine, self._cancelled = self._cancelled is pending, None
        return mine and self._task.uncancel() == 0

    async def stop(self) -> None:
        """End the task."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def discard(self) -> None:
        """Drop all requests and replies, and wake `queue.wait_idle`."""
        # The session is in reference cycles and collected late, and replies may be large.
        self._last = self.running = self._delivering = None
        self.queue.end()

    async def _run(self) -> None:
        while not self.closing:  # checked, because an environment may swallow the cancellation
            pending = await self.queue.take()
            if pending.reply is None:
                self.running, before = pending, self._last
                if pending.request.id is not None:
                    self._last = pending
                pending.reply = await self._perform(pending)
                if pending.reply.refusal is not None and pending.reply.refusal.code in _NOT_RUN:
                    self._last = before
                self.running = None
            self._delivering = pending
            await pending.sink.deliver(pending.request.id, pending.reply)
            for sink in reversed(pending.earlier_sinks):
                await sink.deliver(pending.request.id, pending.reply)
            self._delivering = None

    def _earlier(self, id: str) -> PendingRequest | None:
        """The last or a pending request, if it has this id."""
        if self._last is not None and self._last.request.id == id:
            return self._last
        return self.queue.find(id)


# Requests that a draining server does not start.
_BEGINS = frozenset({"reset", "step", "follow_up", "rollback", "branch"})

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


def _subcalls_of(settings: Settings) -> dict[str, Any] | None:
    """The operator's model and the limit of its calls, for resets that name no model."""
    if settings.llm is None:
        return None
    return {"model": settings.llm.model, "calls": settings.budget.calls}


class ServerSession:
    """A session of `tenant`.

    Attributes:
        id: identifies the session in logs.
        token: identifies the session to its client; a secret.
        sink: the socket that holds the session, or None.
        used_at: time of the last request (`time.monotonic`).
        detached_at: time at which the socket closed; None while there is one, or never was.
        confirmed: the client has used the session; False only where its protocol must confirm it.
        ending: reason for the end, one of `metrics.ENDINGS`.
        cpu: accounting of the session's processes.
        manager: the session manager.
        adapter: the environment; for request handlers only.
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
        self.used_at = time.monotonic()
        self.detached_at: float | None = None
        self.confirmed = True
        self._resumable = False  # a grace period follows when its socket closes
        self.ending = "closed"
        self.cpu = manager.new_cpu_accounting(self)
        self.manager = manager
        self.adapter = adapter
        self._slot = manager.scheduler.slot()
        self._stepping = False
        self._requests = RequestRunner(self._reply)
        self._closing: asyncio.Task[None] | None = None

    # ── for sockets and routes ───────────────────────────────────────────────────────────────────

    @property
    def running(self) -> str | None:
        """The id of the running request; None without one, or if it has no id."""
        running = self._requests.running
        return None if running is None else running.request.id

    @property
    def busy(self) -> bool:
        """True if a request is running or pending."""
        return self._requests.running is not None or len(self._requests.queue) > 0

    @property
    def awaited(self) -> bool:
        """True if a client waits for a running or pending request."""
        return self._requests.awaited

    @property
    def closing(self) -> bool:
        """True if the session is closing or closed."""
        return self._closing is not None

    def facts(self, *, resumed: bool) -> dict[str, Any]:
        """The fields of the reply that announces the session to its client."""
        settings = self.manager.settings
        return {
            "session_id": self.id,
            "token": self.token,
            "resumed": resumed,
            "grace_s": settings.grace_s,
            "running": self.running,
            "subcalls": _subcalls_of(settings),
            "limits": {
                "timeout_s": settings.limits.timeout,
                "max_timeout_s": settings.longest_step_s,
                "message_bytes": settings.largest_message,
                "context_bytes": settings.context_bytes,
                "idle_s": settings.idle_s,
                "undo": settings.undoable,
            },
        }

    def submit(self, request: ClientRequest | InvalidFrame, sink: ReplySink) -> None:
        """Queue a request; its reply, possibly the kept one, goes to `sink`."""
        self.used_at, self.confirmed = time.monotonic(), True
        self._requests.submit(request, sink)

    @property
    def queued(self) -> int:
        """Number of pending requests."""
        return len(self._requests.queue)

    @property
    def accepts_more(self) -> bool:
        """True if the client may send further requests now."""
        return not self._requests.queue.full

    async def wait_for_space(self) -> None:
        """Wait until the client may send further requests."""
        await self._requests.queue.wait_for_space()

    async def cancel(self, id: str) -> bool:
        """Cancel the request with this id; False if it is neither running nor pending."""
        running = self._requests.running
        if running is None or running.request.id != id:
            return self._requests.queue.cancel(id)
        if self._slot.waits:
            self._abandon(running)
        elif await self.adapter.interrupt():
            # A step that ignores the interrupt is abandoned after the grace time.
            grace = float(self.manager.settings.limits.grace)
            asyncio.get_running_loop().call_later(grace, self._abandon, running)
        return True

    def start_grace_period(self) -> None:
        """Keep the session for the grace period, for a socket to resume it."""
        self.detached_at, self._resumable = time.monotonic(), True

    def attach(self, sink: ReplySink, *, resumable: bool = False) -> None:
        """Attach a socket, and close the socket that was attached before.

        `resumable`: when the socket closes, a grace period follows.
        """
        before, self.sink, self.detached_at = self.sink, sink, None
        self._resumable |= resumable
        self.used_at = time.monotonic()
        if before is not None and before is not sink:
            self._requests.queue.remove_sink(before)
            before.end(TAKEN_OVER, "the session was resumed by another socket")

    def detach(self, sink: ReplySink) -> None:
        """Detach a closed socket, and drop its pending requests."""
        if self.sink is sink:
            self.sink, self.detached_at = None, time.monotonic()
            self._requests.queue.remove_sink(sink)
            self.manager.telemetry.session_left(self)

    def detach_guest(self, sink: ReplySink) -> None:
        """Detach a socket that had joined an existing session; the session goes on as before."""
        if self.sink is sink:
            self.sink, self.detached_at = None, time.monotonic() if self._resumable else None
            self._requests.queue.remove_sink(sink)

    async def reset(self, data: Any) -> Any:
        """Start an episode and record it; returns the observation. For request handlers."""
        began = time.monotonic()
        async with self._slot:
            self.account_cpu()
            observation = await self.adapter.reset(data)
            # Only now, since a failed reset keeps the processes.
            self.cpu = self.manager.new_cpu_accounting(self)
        self.manager.telemetry.reset(self, time.monotonic() - began)
        return observation

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Perform an action and record it; returns the observation. For request handlers."""
        if timeout_s is not None and timeout_s > (longest := self.manager.settings.longest_step_s):
            raise validation_error("timeout_s", f"at most {longest:g} seconds", "less_than_equal")
        self.meter.step()
        began, scheduler, slot = time.monotonic(), self.manager.scheduler, self._slot
        # Like `async with slot`, which would run two more coroutines.
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

    async def roll_back(self, cells: int) -> Sequence[str]:
        """Undo cells, in turn with the steps of other sessions. For request handlers."""
        async with self._slot:
            return await self.adapter.rollback(cells)

    def account_cpu(self) -> bool:
        """Charge CPU time that was used outside of steps; whether processes were busy."""
        if not self.meter.counts_cpu:
            return False  # reading the CPU time takes longer than a short step
        total = self.adapter.cpu_seconds
        return total is not None and self.cpu.observe(total)

    async def branch_environment(self, seed: int | None) -> EnvironmentAdapter:
        """Copy the environment. For request handlers."""
        return await self.adapter.branch(seed)

    async def wait_idle(self) -> None:
        """Wait until no request is left and all replies were sent, or the session ended."""
        await self._requests.queue.wait_idle()

    def ended_error(self, code: str) -> RequestError:
        """The error for requests to the ended session: `code`, or DRAINING."""
        if self.ending == "drain":
            return draining_error()
        return RequestError(code, "the session has ended")

    def end(self, why: str = "closed") -> asyncio.Task[None]:
        """Start to close the session; the task finishes when all its resources are released."""
        if self._closing is None:
            self.ending = why
            self._requests.closing = True
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def close(self, why: str = "closed") -> None:
        """Close the session and release its resources."""
        await asyncio.shield(self.end(why))

    # ── performing requests ──────────────────────────────────────────────────────────────────────

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
            if not self._requests.recall(pending):
                raise
            return cancelled_reply()
        # Boundary: an error of the environment becomes the error reply of its request.
        except Exception as error:  # noqa: BLE001
            if self._closing is not None and isinstance(error, EpisodeAborted):
                # `_close` killed the session under the running step: not a fault to log.
                return ServerReply.of_error(self.ended_error("EPISODE_ABORTED"))
            return ServerReply.of_error(request_error_of(error))
        finally:
            self.used_at = time.monotonic()
            if self._requests.cancelled:
                self._requests.recall(pending)  # the environment swallowed the cancellation

    def _notify_sinks(self) -> None:
        """End all sinks that wait for a reply or hold the session."""
        sinks = self._requests.sinks
        if self.sink is not None:
            sinks.append(self.sink)
        if sinks:
            ended = self.ended_error("UNKNOWN_SESSION")
            for sink in sinks:
                sink.end(ended.close or 1000, ended.message)

    def _abandon(self, pending: PendingRequest) -> None:
        """Cancel the running request, unless its result is only waiting for a slow reader."""
        if (self._stepping or self._slot.waits) and self._closing is None:
            self._requests.abandon(pending)

    async def _close(self) -> None:
        try:
            self.account_cpu()
            if self._stepping:
                # Kill the session under the step: quicker than waiting for the step to end.
                await self.adapter.cut_off()
            await self._requests.stop()
            self._notify_sinks()
            await self.adapter.close()
        # Boundary: the manager must forget the session even if its environment fails to close.
        except Exception as error:  # noqa: BLE001
            server_fault("SESSION_ERROR", "closing", error)
        finally:
            self._requests.discard()
            self.manager.forget(self)


# `SessionTurn`: holds a session between two of its requests, for work on its environment.

# The type of its request, which no client can send.
TURN = "turn"


class SessionTurn:
    """A request that runs until `end`, and the sink of its own reply."""

    blocked_since: float | None = None

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    @property
    def gone(self) -> bool:
        """True if nobody holds the session, or waits for it, any more."""
        return self.ended.is_set()

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """As `ReplySink.deliver`: an error in place of the turn."""
        if reply.refusal is not None and not self.begun.done():
            self.begun.set_exception(reply.refusal)

    def end(self, code: int, reason: str) -> None:
        """As `ReplySink.end`."""
        if not self.begun.done():
            self.begun.set_exception(socket_closed_error(code, reason))


@asynccontextmanager
async def turn_of(session: ServerSession) -> AsyncIterator[EnvironmentAdapter]:
    """Hold `session` for the block, after its earlier requests and before later ones.

    Raises:
        RequestError: the session ended first.
    """
    turn = SessionTurn()
    session.submit(ClientRequest(TURN, turn), turn)
    try:
        await turn.begun
        yield session.adapter
    finally:
        turn.ended.set()


async def hold(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    """The handler of the request."""
    turn: SessionTurn = request.data
    if not turn.begun.done():
        turn.begun.set_result(None)
    await turn.ended.wait()
    return ServerReply(TURN, "{}")

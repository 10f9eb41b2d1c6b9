"""`RequestRunner`: performs the requests of one session, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.replies import ServerReply
from .request_queue import PendingRequest, ReplySink, RequestQueue

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

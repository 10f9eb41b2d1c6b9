"""Requests from any thread, answered in batches by one thread.

The thread exists while there are requests, and ends with the last one: a program does not wait at
its end, and an unused model holds nothing but itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class BatchedRequest(Generic[Q, A]):
    """One request. Requests of one `group` may share a batch; one with group None runs alone."""

    question: Q
    group: Hashable
    answer: Future[A] = field(default_factory=Future)

    @property
    def dropped(self) -> bool:
        """Whether the caller no longer waits for the answer."""
        return self.answer.done()

    def give(self, answer: A) -> None:
        """Deliver the answer, unless the request was dropped meanwhile."""
        try:
            self.answer.set_result(answer)
        except InvalidStateError:
            pass

    def fail(self, error: Exception) -> None:
        """Deliver the error, unless the request was dropped meanwhile."""
        try:
            self.answer.set_exception(error)
        except InvalidStateError:
            pass


class RequestBatcher(Generic[Q, A]):
    """Takes requests from any thread and hands them to `run`, oldest first.

    Args:
        run: answers or fails each request of a batch; called in the one thread. Its exception fails
            the
            requests that it did not answer.
        size: the largest number of requests in a batch. May be changed at any time.
        wait: seconds that the oldest request waits for others before it runs in a smaller batch.
    """

    def __init__(
        self, run: Callable[[Sequence[BatchedRequest[Q, A]]], None], size: int, wait: float
    ) -> None:
        self.size = size
        self._run = run
        self._wait = wait
        self._queue: deque[BatchedRequest[Q, A]] = deque()
        self._running: Sequence[BatchedRequest[Q, A]] = ()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, queued: BatchedRequest[Q, A]) -> None:
        """Queue `queued`."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="repl-env batches")
                thread.start()  # may fail; then no request is queued, so none waits forever
                self._thread = thread
            self._queue.append(queued)
            self._changed.notify_all()

    def close(self, error: Exception) -> None:
        """Fail all requests with `error`; return when the thread has ended."""
        with self._changed:
            for queued in (*self._running, *self._queue):
                queued.fail(error)
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._run(batch)
            # Boundary: the thread continues for other requests after any failure.
            except Exception as error:  # noqa: BLE001
                for queued in batch:
                    queued.fail(error)

    def _next(self) -> Sequence[BatchedRequest[Q, A]]:
        """Return the next batch; empty when the thread should end."""
        with self._changed:
            self._running = ()
            while not self._running and self._oldest() is not None:
                # The oldest may be dropped while it waits for others; the next is the oldest then.
                self._changed.wait_for(self._full, self._wait)
                self._running = self._next_batch()
            running_ids = set(map(id, self._running))
            self._queue = deque(queued for queued in self._queue if id(queued) not in running_ids)
            if not self._running:
                self._thread = None
            return self._running

    def _oldest(self) -> BatchedRequest[Q, A] | None:
        while self._queue and self._queue[0].dropped:
            self._queue.popleft()
        return self._queue[0] if self._queue else None

    def _full(self) -> bool:
        oldest = self._oldest()
        return oldest is None or oldest.group is None or len(self._next_batch()) >= self.size

    def _next_batch(self) -> Sequence[BatchedRequest[Q, A]]:
        """Return the oldest request and those that may share its batch."""
        oldest = self._oldest()
        if oldest is None or oldest.group is None:
            return () if oldest is None else (oldest,)
        same_group = (queued for queued in self._queue if queued.group == oldest.group)
        return [queued for queued in same_group if not queued.dropped][: self.size]

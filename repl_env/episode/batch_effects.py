"""The batch driver: effects of many environments, performed concurrently by one thread.

Cells of blocking sessions run as one batch of the engine. Other effects run one after another,
until
one takes long enough to be a wait; the rest then goes to threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from time import perf_counter
from typing import Any, Generic, TypeVar

from repl_env.episode.effects import Effects
from repl_env.episode.session_effects import CellEffect
from repl_sandbox.session.drivers.batch import SessionBatch

T = TypeVar("T")

# Seconds. A handover to a thread and back costs a tenth of this.
_A_WAIT = 0.001


def run_batch(
    turns: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
) -> list[T | Exception]:
    """Return the result of each generator, or the error that ended it.

    `threads` supplies threads.
    """
    return _RunningBatch(turns, batch, threads).play()


class _RunningBatch(Generic[T]):
    """Running generators with their pending effects."""

    def __init__(
        self, turns: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
    ) -> None:
        self._turns = turns
        self._batch = batch
        self._threads = threads
        self._requests: dict[int, Callable[[], Any]] = {}
        self._ended: dict[int, T | Exception] = {}

    def play(self) -> list[T | Exception]:
        try:
            for index in range(len(self._turns)):
                self._resume(index, None)
            while self._requests:
                requests = list(self._requests.items())
                self._run([(i, each) for i, each in requests if isinstance(each, CellEffect)])
                self._do([(i, each) for i, each in requests if not isinstance(each, CellEffect)])
        except BaseException as error:
            # Ctrl-C: each generator receives it and cleans up, including one whose effect was not
            # recorded.
            for index, turn in enumerate(self._turns):
                if index not in self._ended:
                    self._abandon(turn, error)
            raise
        return [self._ended[index] for index in range(len(self._turns))]

    def _resume(self, index: int, reply: Any) -> None:
        turn = self._turns[index]
        self._requests.pop(index, None)
        try:
            failed = isinstance(reply, Exception)
            self._requests[index] = turn.throw(reply) if failed else turn.send(reply)
        except StopIteration as end:
            self._ended[index] = end.value
        except Exception as error:  # noqa: BLE001 - one environment's; the others go on
            self._ended[index] = error

    def _run(self, cells: list[tuple[int, CellEffect]]) -> None:
        """Run cells concurrently."""
        come = self._batch.run([each.taken_apart() for _, each in cells]) if cells else []
        for (index, _), reply in zip(cells, come, strict=True):
            self._resume(index, reply)

    def _do(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        """Perform all other effects."""
        for done, (index, request) in enumerate(others, 1):
            start = perf_counter()
            self._resume(index, _attempt(request))
            if perf_counter() - start > _A_WAIT and done < len(others):
                self._do_in_threads(others[done:])
                return

    def _do_in_threads(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        threads = self._threads()
        coming = {index: threads.submit(_attempt, request) for index, request in others}
        try:
            while coming:
                index = next(iter(coming))
                self._resume(index, coming[index].result())
                del coming[index]
        except BaseException:
            # Work that has begun completes in its generator, which may have a session to close
            # again.
            for index, each in coming.items():
                # otherwise it was delivered already
                if not each.cancel() and index in self._requests:
                    self._resume(index, each.result())
            raise

    def _abandon(self, turn: Effects[T], error: BaseException) -> None:
        with suppress(BaseException):
            request = turn.throw(error)
            while True:
                request = turn.send(_attempt(request))


def _attempt(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # noqa: BLE001 - the turn's, which handles it or ends by it
        return error

"""The batch driver: effects of many environments, performed concurrently by one thread.

Cells of blocking sessions run as one batch of the engine. Other effects run one after another,
until one takes long enough to be a wait; the rest then goes to threads.
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
_WAIT_S = 0.001


def run_batch(
    effects: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
) -> list[T | Exception]:
    """Return the result of each generator, or the error that ended it.

    `threads` supplies threads.
    """
    return _RunningBatch(effects, batch, threads).run()


class _RunningBatch(Generic[T]):
    """Running generators with their pending effects."""

    def __init__(
        self, effects: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
    ) -> None:
        self._effects = effects
        self._batch = batch
        self._threads = threads
        self._requests: dict[int, Callable[[], Any]] = {}
        self._ended: dict[int, T | Exception] = {}

    def run(self) -> list[T | Exception]:
        try:
            for index in range(len(self._effects)):
                self._resume(index, None)
            while self._requests:
                requests = list(self._requests.items())
                self._run([(i, each) for i, each in requests if isinstance(each, CellEffect)])
                self._do([(i, each) for i, each in requests if not isinstance(each, CellEffect)])
        except BaseException as error:
            # Ctrl-C: each generator receives it and cleans up, including one whose effect was not
            # recorded.
            for index, generator in enumerate(self._effects):
                if index not in self._ended:
                    self._abandon(generator, error)
            raise
        return [self._ended[index] for index in range(len(self._effects))]

    def _resume(self, index: int, reply: Any) -> None:
        generator = self._effects[index]
        self._requests.pop(index, None)
        try:
            failed = isinstance(reply, Exception)
            self._requests[index] = generator.throw(reply) if failed else generator.send(reply)
        except StopIteration as end:
            self._ended[index] = end.value
        except Exception as error:  # noqa: BLE001 - one environment's; the others go on
            self._ended[index] = error

    def _run(self, cells: list[tuple[int, CellEffect]]) -> None:
        """Run cells concurrently."""
        replies = self._batch.run([each.parts() for _, each in cells]) if cells else []
        for (index, _), reply in zip(cells, replies, strict=True):
            self._resume(index, reply)

    def _do(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        """Perform all other effects."""
        for done, (index, request) in enumerate(others, 1):
            start = perf_counter()
            self._resume(index, _attempt(request))
            if perf_counter() - start > _WAIT_S and done < len(others):
                self._do_in_threads(others[done:])
                return

    def _do_in_threads(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        threads = self._threads()
        futures = {index: threads.submit(_attempt, request) for index, request in others}
        try:
            while futures:
                index = next(iter(futures))
                self._resume(index, futures[index].result())
                del futures[index]
        except BaseException:
            # Work that has begun completes in its generator, which may have a session to close
            # again.
            for index, each in futures.items():
                # otherwise it was delivered already
                if not each.cancel() and index in self._requests:
                    self._resume(index, each.result())
            raise

    def _abandon(self, generator: Effects[T], error: BaseException) -> None:
        with suppress(BaseException):
            request = generator.throw(error)
            while True:
                request = generator.send(_attempt(request))


def _attempt(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # noqa: BLE001 - the turn's, which handles it or ends by it
        return error

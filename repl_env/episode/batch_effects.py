"""Turns of many environments, played side by side by one thread.

What turns ask for at the same time is done at the same time: cells of plain sessions as one batch
of the engine's; everything else here, one after the other, until something takes long enough to be
a wait. From there on the rest goes to threads.
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

# Seconds. To hand something to a thread and take the result back costs a tenth of this.
_A_WAIT = 0.001


def run_batch(
    turns: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
) -> list[T | Exception]:
    """What each turn returns, or the error that ended it; `threads` gives threads if need be."""
    return _RunningBatch(turns, batch, threads).play()


class _RunningBatch(Generic[T]):
    """Turns under way, and what each has asked for and not been given yet."""

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
            # Ctrl-C: each turn hears of it, and does what it must before it ends. Also one whose
            # request it kept from being noted.
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
        """Run cells side by side."""
        come = self._batch.run([each.taken_apart() for _, each in cells]) if cells else []
        for (index, _), reply in zip(cells, come, strict=True):
            self._resume(index, reply)

    def _do(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        """Do everything else."""
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
            # What was begun is brought to its turn, which may have a session to close again.
            for index, each in coming.items():
                if not each.cancel() and index in self._requests:  # else it was brought already
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

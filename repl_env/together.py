"""Turns of many environments, played side by side by one thread.

What turns ask for at the same time is done at the same time: cells of plain sessions as one batch
of the engine's; everything else here, one after the other, until something takes long enough to be
a wait. From there on the rest goes to threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Any, TypeVar

from repl_env.cells import Cell
from repl_env.turns import Turn
from repl_sandbox.session.batch import Batch

T = TypeVar("T")

# Seconds. To hand something to a thread and take the result back costs a tenth of this.
_A_WAIT = 0.001


def play_together(
    turns: Sequence[Turn[T]], batch: Batch, threads: Callable[[], Executor]
) -> list[T | Exception]:
    """What each turn returns, or the error that ended it; `threads` gives threads if need be."""
    ended: list[T | Exception | None] = [None] * len(turns)
    requests: dict[int, Callable[[], Any]] = {}

    def resume(index: int, reply: Any) -> None:
        turn = turns[index]
        requests.pop(index, None)
        try:
            failed = isinstance(reply, Exception)
            requests[index] = turn.throw(reply) if failed else turn.send(reply)
        except StopIteration as end:
            ended[index] = end.value
        except Exception as error:  # noqa: BLE001 - one environment's; the others go on
            ended[index] = error

    for index in range(len(turns)):
        resume(index, None)
    while requests:
        for index, reply in [*_cells(requests, batch), *_others(requests, threads)]:
            resume(index, reply)
    return [end for end in ended if end is not None]


Replies = list[tuple[int, Any]]


def _cells(requests: dict[int, Callable[[], Any]], batch: Batch) -> Replies:
    """What the cells among the requests come to, run side by side."""
    cells = {index: each for index, each in requests.items() if isinstance(each, Cell)}
    run = [each.taken_apart() for each in cells.values()]
    return list(zip(cells, batch.run(run), strict=True)) if run else []


def _others(requests: dict[int, Callable[[], Any]], threads: Callable[[], Executor]) -> Replies:
    """What everything else comes to."""
    waiting = [(index, each) for index, each in requests.items() if not isinstance(each, Cell)]
    replies: Replies = []
    for done, (index, request) in enumerate(waiting, 1):
        start = perf_counter()
        replies.append((index, _attempt(request)))
        if perf_counter() - start > _A_WAIT and done < len(waiting):
            rest = waiting[done:]
            made = threads().map(_attempt, [request for _, request in rest])
            return replies + list(zip((index for index, _ in rest), made, strict=True))
    return replies


def _attempt(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # noqa: BLE001 - the turn's, which handles it or ends by it
        return error

"""`ShieldedOperations`: operations that complete even if their caller leaves in the middle."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from .io import ReadyDescriptors

_T = TypeVar("_T")


class ShieldedOperations:
    """`unfinished`: the steps of an operation in progress, whose caller may have left."""

    def __init__(self) -> None:
        self.unfinished: Generator[float, ReadyDescriptors, object] | None = None

    def of(
        self, steps: Generator[float, ReadyDescriptors, _T]
    ) -> Generator[float, ReadyDescriptors, _T]:
        """Run `steps` and return their result; they complete even if the caller leaves."""
        self.unfinished = steps
        return (yield from self._drive(steps, begun=False))

    def of_abandoned(self) -> Generator[float, ReadyDescriptors, None]:
        """Complete the operation whose caller has left."""
        if self.unfinished is not None:
            yield from self._drive(self.unfinished, begun=True)

    def _drive(
        self, steps: Generator[float, ReadyDescriptors, _T], *, begun: bool
    ) -> Generator[float, ReadyDescriptors, _T]:
        # Not `yield from`, which would close `steps` with this generator.
        try:
            wake = steps.send([]) if begun else next(steps)
            while True:
                wake = steps.send((yield wake))
        except StopIteration as end:
            self.unfinished = None
            result: _T = end.value
            return result

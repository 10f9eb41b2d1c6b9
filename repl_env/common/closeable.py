"""`Closeable`: what is closed by `close`, and at the end of a `with` block."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closeable:
    """Base of context managers that are themselves what is held, and close at the end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

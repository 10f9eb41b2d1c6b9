"""`Closeable` and `AsyncCloseable`: objects with `close` that are also context managers."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closeable:
    """Base of context managers that return themselves and close at the end of the block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release the resources. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncCloseable:
    """`Closeable` for event loops: `close` is awaited at the end of an `async with` block."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """Release the resources. Safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

"""Reprs, HTML for notebooks and public modules of our classes; objects with `close`."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

# One module of the engine, which needs the standard library alone, on any system.
from repl_sandbox.display import Displayed, DisplayedByMethods, DisplayedByRepr, set_module

# `Closeable` and `AsyncCloseable`: objects with `close` that are also context managers.


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


__all__ = [
    "AsyncCloseable",
    "Closeable",
    "Displayed",
    "DisplayedByMethods",
    "DisplayedByRepr",
    "set_module",
]

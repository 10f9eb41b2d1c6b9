"""Reprs, HTML for notebooks and public modules of our classes; `Closeable`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from inspect import get_annotations
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, ForwardRef, NoReturn, Self, TypeVar

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


# `Displayed`: a short repr, and HTML for notebooks.


class Displayed:
    """Gives a class a repr below 300 characters and an HTML form, by its fields.

    `_DISPLAYED_TOO` names properties that are shown beside the fields.
    """

    __slots__ = ()

    _DISPLAYED_TOO: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        from repl_sandbox.display import short_repr

        return short_repr(self)

    def _repr_html_(self) -> str:
        from repl_sandbox.display import html_of

        return html_of(self)


class DisplayedByRepr:
    """Gives a class its repr as its HTML form, for objects that are shown by their condition."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from repl_sandbox.display import html_of_repr

        return html_of_repr(self)


class DisplayedByMethods(DisplayedByRepr):
    """Gives a class a repr with its methods, and names them in the error of an unknown one."""

    __slots__ = ()

    def __repr__(self) -> str:
        from repl_sandbox.display import repr_of_methods

        return repr_of_methods(self)

    if not TYPE_CHECKING:  # a checker would take every attribute for known

        def __getattr__(self, name: str) -> NoReturn:
            from repl_sandbox.display import unknown_method

            raise unknown_method(self, name)


def framed(text: str, forms: Mapping[str, str]) -> str:
    """Return HTML that shows what a session displayed, in a frame without scripts and network."""
    from repl_sandbox.display import framed

    return framed(text, forms)


# `set_module`: the module that documents a class or function, as its `__module__`.
#
# Tracebacks, reprs and pickles name the documented path, which stays when files move.

T = TypeVar("T")


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets `__module__` to `module`, which exports the object.

    It is the outermost decorator: `dataclass` evaluates annotations in the defining module, which
    `__module__` names until then. `typing.get_type_hints` does so as well, later; the annotations
    of a class therefore keep the defining module.
    """

    def decorate(decorated: T) -> T:
        if isinstance(decorated, type) and (annotations := get_annotations(decorated)):
            decorated.__annotations__ = {
                name: _reference(value, decorated.__module__) if isinstance(value, str) else value
                for name, value in annotations.items()
            }
        decorated.__module__ = module
        return decorated

    return decorate


def _reference(annotation: str, module: str) -> ForwardRef:
    return ForwardRef(annotation, is_argument=False, module=module, is_class=True)

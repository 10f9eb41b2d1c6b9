"""`Displayed`: a short repr, and HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn


class Displayed:
    """Gives a class a repr below 300 characters and an HTML form, by its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        from .object_display import short_repr

        return short_repr(self)

    def _repr_html_(self) -> str:
        from .object_display import html_of

        return html_of(self)


class DisplayedByRepr:
    """Gives a class its repr as its HTML form, for objects that are shown by their condition."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from .object_display import html_of_repr

        return html_of_repr(self)


class DisplayedByMethods(DisplayedByRepr):
    """Gives a class a repr with its methods, and names them in the error of an unknown one."""

    __slots__ = ()

    def __repr__(self) -> str:
        from .object_display import repr_of_methods

        return repr_of_methods(self)

    if not TYPE_CHECKING:  # a checker would take every attribute for known

        def __getattr__(self, name: str) -> NoReturn:
            from .object_display import unknown_method

            raise unknown_method(self, name)

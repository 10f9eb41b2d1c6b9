"""Examples in docstrings: fenced blocks, and the output that comments of their prints state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.surface.exports import exported
from tests.surface.names import SAME, importable, listed

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """The example of a class, a function, or a method, which has the class as its `owner`."""

    module: str
    name: str
    code: str

    @property
    def owner(self) -> str:
        """The class of a method; empty for classes and functions."""
        return self.name.rpartition(".")[0]

    @property
    def output(self) -> list[str]:
        """The lines that the comments behind prints state."""
        return _PRINTED.findall(self.code)


def examples() -> Iterator[Example]:
    """Yield the examples of all public names whose module can be imported here."""
    for module, names in listed().items():
        if importable(module):
            for name, text in names.items():
                if not text.startswith((SAME, "constant")):
                    for code in _FENCE.findall(docstring(module, name)):
                        yield Example(module, name, code)


def docstring(module: str, name: str) -> str:
    """Return the docstring of a public name, or of the attribute "Class.attribute"."""
    owner, _, attribute = name.rpartition(".")
    value = exported(module, name) if not owner else None
    if owner:
        value = inspect.getattr_static(exported(module, owner), attribute, None)
    value = getattr(value, "__func__", value)
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")

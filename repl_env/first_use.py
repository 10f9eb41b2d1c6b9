"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def on_first_use(
    package: str,
    names: Mapping[str, Iterable[str]],
    elsewhere: Mapping[str, Iterable[str]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`.

    `names` are the names in each of its modules, `elsewhere` those in modules of other packages.
    """
    homes = {name: f"{package}.{module}" for module, its in names.items() for name in its}
    homes |= {name: module for module, its in (elsewhere or {}).items() for name in its}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed

"""Modules as guarded cells see them under "restricted": only the names of the module's row."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..errors import PolicyError
from .lint import listed
from .modules import ROWS, ModuleRule
from .replacement_functions import STAND_INS

_import = builtins.__import__


class ModuleProxy(ModuleType):
    """Holds the names of a module that a cell may use, without a reference to the module."""

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, as this session's policy offers it>"


# Previews and errors show the name of a value's type.
ModuleProxy.__name__ = ModuleProxy.__qualname__ = "module"


class ModuleProxies:
    """Proxies of the allowed modules, made once in the template."""

    def __init__(self, modules: Collection[str]) -> None:
        self._allowed = frozenset(modules)
        self._proxies: dict[str, ModuleProxy] = {}
        self.writable: tuple[type, ...] = ()
        for name in sorted(modules):  # a package before its submodules
            self._add(name)

    def import_module(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        """`__import__` of cells, with the arguments of the builtin.

        Raises:
            PolicyError: the module, or a name to be imported from it, is not offered.
        """
        if type(fromlist) is list:
            # Statements pass a tuple or None. C functions that import what they need, such as
            # datetime.strptime, pass a list, and do not give the module to the cell.
            return _import(name, globals, locals, fromlist, level)
        if level or name not in self._allowed:
            raise PolicyError(
                f"import of {'.' * level + name!r} is not allowed; "
                f"imports allowed: {listed(self._allowed)}"
            )
        if not fromlist:
            return self._proxies[name.partition(".")[0]]
        # Otherwise the interpreter would look in sys.modules for names that the proxy lacks.
        for imported in fromlist:
            if reason := self.missing(name, imported):
                raise PolicyError(reason)
        return self._proxies[name]

    def missing(self, module: str, name: str) -> str:
        """Return why the proxy of an allowed `module` has no `name`, or "" if it has."""
        if name in (offered := self._names(self._proxies[module])):
            return ""
        return f"{module}.{name} is not offered; {module} offers {listed(offered)}"

    def knows(self, module: str) -> bool:
        """Return whether `module` is allowed."""
        return module in self._allowed

    def _names(self, proxy: ModuleProxy) -> list[str]:
        return [name for name in vars(proxy) if name[:1] != "_"]

    def _add(self, name: str) -> None:
        row = ROWS[name]
        package, _, last = name.rpartition(".")
        proxy = self._proxy(name)
        vars(proxy).update(_offer(row))
        if package:
            setattr(self._proxy(package), last, proxy)
        module = importlib.import_module(name)
        self.writable += tuple(getattr(module, each) for each in row.writable.split())

    def _proxy(self, name: str) -> ModuleProxy:
        if name not in self._proxies:
            self._proxies[name] = ModuleProxy(name)
        return self._proxies[name]


def _offer(row: ModuleRule) -> dict[str, Any]:
    """Return the values of a row's names that this version of Python has."""
    module = importlib.import_module(row.module)
    found = {name: getattr(module, name) for name in row.names.split() if hasattr(module, name)}
    replaced = STAND_INS.get(row.module, {})
    return {**found, **{name: replaced[name] for name in row.replaced.split()}}

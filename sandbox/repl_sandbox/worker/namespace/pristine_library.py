"""Private copies of library modules for the engine, unaffected by changes of session code.

A test leaves `socket.socket` patched, and a guard against harmful code sets `os.fork` and
`os.getcwd` to None. The session works on with that; its recovery must not be affected.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType

# Modules without state that their functions rebind, as `threading` does in a fork.
_MODULES = (
    "base64", "contextlib", "enum", "errno", "fcntl", "functools", "gc", "itertools", "json",
    "mmap", "operator", "os", "posixpath", "re", "resource", "select", "signal", "socket", "stat",
    "struct", "time", "types",
)  # fmt: skip


_PACKAGE = __name__.partition(".")[0] + "."
_copies: dict[int, ModuleType] = {}  # by the ids of the modules


def keep_library() -> None:
    """In a template, before it forks: copy these modules for all modules of the engine."""
    copies = {name: _copy(sys.modules[name]) for name in _MODULES if name in sys.modules}
    vars(copies["os"])["path"] = copies["posixpath"]
    _copies.update({id(sys.modules[name]): copy for name, copy in copies.items()})
    use_copies()


def use_copies() -> None:
    """Give the engine's modules, some perhaps newly imported, the copies."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            own = vars(module)
            own.update({key: _copies[id(own[key])] for key in own if id(own[key]) in _copies})


def _copy(module: ModuleType) -> ModuleType:
    """Return a module with the same contents, whose functions look each other up in it."""
    copy = ModuleType(module.__name__, module.__doc__)
    original, copied = vars(module), vars(copy)
    copied.update(original)
    for name, value in original.items():
        if type(value) is FunctionType and value.__globals__ is original:
            copied[name] = function = FunctionType(
                value.__code__, copied, value.__name__, value.__defaults__, value.__closure__
            )
            function.__kwdefaults__ = value.__kwdefaults__
    return copy

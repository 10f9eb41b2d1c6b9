"""Modules of the session: files of the workspace and of other folders that code can write.

The workspace comes first on `sys.path`, like the folder of a script, then the current directory, as
in an interactive interpreter. A path hook of this package finds the modules there, because the
interpreter's trusts file times: it misses a file made within the tick in which it listed the
folder, and takes the bytecode of a file that was changed within the same second. This hook caches
nothing: it looks into the folder for each module, and neither reads nor writes bytecode. Loaders
that session code makes write none either, so that they read none.
"""

from __future__ import annotations

import os
import sys
import zipimport
from ast import Module, PyCF_ONLY_AST
from collections.abc import Callable, Sequence
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import ModuleType
from typing import Any

from ...errors import PolicyError
from .safe_inspect import module_dict

# A function of a module's syntax tree and package; it raises PolicyError for code that a language
# policy refuses.
Check = Callable[[Module, str], None]

# The current directory at the time of the import.
_CURRENT_DIRECTORY = ""

_isfile, _lexists = os.path.isfile, os.path.lexists


class _Loader(SourceFileLoader):
    """Compiles the source each time."""

    def path_stats(self, path: Any) -> Any:
        """Raise OSError: the base class then neither reads nor writes bytecode."""
        raise OSError


class _CheckedLoader(_Loader):
    """Applies the session's language policy to each module."""

    check: Check

    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:  # type: ignore[override]
        """Compile like the base class; PolicyError if the policy refuses the source."""
        tree: Any = compile(data, path, "exec", PyCF_ONLY_AST, dont_inherit=True)
        package = self.name if self.is_package(self.name) else self.name.rpartition(".")[0]
        try:
            self.check(tree, package)
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}") from None
        return super().source_to_code(data, path, **options)


_Loaders = Sequence[tuple[type[Any], list[str]]]
_UNCHECKED: _Loaders = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_Loader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


class _WorkspaceFinder(FileFinder):
    """Finds modules in the current content of one folder, and records their names in `found`."""

    def __init__(self, path: str, loaders: _Loaders, found: set[str]) -> None:
        super().__init__(path, *loaders)
        self._found = found
        self._suffixes = ["", *(suffix for _, suffixes in loaders for suffix in suffixes)]

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find like the base class, which lists the whole folder; so only for a possible match."""
        place = f"{self.path}/{fullname.rpartition('.')[2]}"
        if not any(_lexists(place + suffix) for suffix in self._suffixes):
            return None
        self.invalidate_caches()
        spec = super().find_spec(fullname, target)
        if spec is not None:
            self._found.add(fullname)
        return spec


class WorkspaceModules:
    """Folders of one session in which code may put modules.

    `found`: full names of modules that were found there.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.folder = ""  # the workspace; "" for none whose modules may be imported
        self._begun = False
        self._loaders = _UNCHECKED
        self._library: tuple[str, ...] = ()

    def install(self, check: Check | None) -> None:
        """In a template: find modules in all folders but those on the current `sys.path`."""
        sys.dont_write_bytecode = True
        # With another interpreter, the path of the template lacks the parent of this package.
        package = sys.modules[__name__.partition(".")[0]].__path__
        self._library = tuple(f"{path}/" for path in (*sys.path, *package) if path)
        if check is None:
            # After the hook of archives.
            place = sys.path_hooks.index(zipimport.zipimporter) + 1
        else:
            # Nothing but source can be checked.
            loader = type("_Loader", (_CheckedLoader,), {"check": staticmethod(check)})
            self._loaders, place = ((loader, SOURCE_SUFFIXES),), 0
        sys.path_hooks.insert(place, self._finder)

    def begin(self) -> None:
        """In a worker, not in a helper process of init: import from the workspace."""
        if self.folder and not self._begun:
            self._begun = True
            sys.path[:0] = [self.folder, _CURRENT_DIRECTORY]

    def overlooked(self, name: str) -> str:
        """Return the file of a module `name` in the workspace if another one is loaded, else ""."""
        if not self.folder or name in self.found:
            return ""
        place = f"{self.folder}/{name}"
        return next(filter(_isfile, (f"{place}.py", f"{place}/__init__.py")), "")

    def move(self, folder: str) -> None:
        """In a branch: switch to the workspace `folder`, a copy of the old one."""
        if not self.folder:
            return
        old, self.folder = self.folder, folder
        sys.path[:] = [_moved(path, old, folder) for path in sys.path]
        for name in self.found:
            module = sys.modules.get(name)
            places = module_dict(module).get("__path__") if type(module) is ModuleType else None
            if type(places) is list:
                places[:] = [_moved(path, old, folder) for path in places]

    def _finder(self, path: str) -> _WorkspaceFinder:
        """Return a finder, as a hook of `sys.path_hooks`; also for a future folder.

        Archives are accepted where modules are checked, because their own hook would not check
        them: the finder finds nothing in an archive.
        """
        inside = f"{path}/"
        in_workspace = bool(self.folder) and inside.startswith(f"{self.folder}/")
        archive = self._loaders is _UNCHECKED and _isfile(path)
        if not in_workspace and (inside.startswith(self._library) or archive):
            raise ImportError(f"{path} is no folder of the session's own", path=path)
        return _WorkspaceFinder(path, self._loaders, self.found)


def _moved(path: Any, old: str, new: str) -> Any:
    """Return `path`, moved to `new` if it leads to `old`."""
    below = type(path) is str and f"{path}/".startswith(f"{old}/")
    return new + path[len(old) :] if below else path


MODULES = WorkspaceModules()

"""Imports in a session: modules that code can write, modules of the engine, multiprocessing."""

from __future__ import annotations

import importlib
import os
import sys
import zipimport
from _thread import get_ident
from ast import Module, PyCF_ONLY_AST
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import FunctionType, ModuleType
from typing import Any

from ..errors import PolicyError
from . import displays
from .namespace import HOST_MODULE, module_dict

# multiprocessing in a session: the start method, and refusals of what other processes lack.
#
# The start method is fork, as on Linux up to CPython 3.13. From 3.14 on, multiprocessing would
# start a server process whose children import the program's main module from its file. A session
# has no such file: a function of a cell could not be found there, and `Pool` would start failing
# workers for ever. The reason for the change in CPython is programs with threads; a session has
# none but those of its code, and its code may choose any method.
#
# A process that is started anew ("spawn", "forkserver") finds no function or class of a cell, and
# no function of the host. It would die of that, and its pool would start the next one while the
# cell waits for its result. So their pickles are refused while such a process runs or is being
# started.

_kill = os.kill
_IPYTHON = "IPython"


def _choose_fork(context: Any) -> None:
    # A private name, but `set_start_method` would use up the one choice that a program has.
    context._default_context._default_context = context._concrete_contexts["fork"]


def _refuse_lost(reduction: Any) -> None:
    """Let the pickles of multiprocessing refuse objects that another interpreter cannot find."""
    general = reduction.ForkingPickler
    dumps, dump = general.dumps, reduction.dump

    class ForkingPickler(general):  # type: ignore[misc,valid-type]
        def reducer_override(self, obj: object) -> Any:
            if reason := _lost(obj):
                raise reduction.pickle.PicklingError(reason)
            return NotImplemented

    def checked_dumps(cls: Any, obj: object, protocol: int | None = None) -> Any:
        if cls is general and _starts_anew():
            return dumps.__func__(ForkingPickler, obj, protocol)
        return dumps.__func__(cls, obj, protocol)

    def checked_dump(obj: object, file: Any, protocol: int | None = None) -> None:
        if _starts_anew():
            ForkingPickler(file, protocol).dump(obj)
        else:
            dump(obj, file, protocol)

    general.dumps, reduction.dump = classmethod(checked_dumps), checked_dump


def _lost(obj: object) -> str:
    """Return the reason why a new interpreter cannot find `obj`, or ""."""
    if type(obj) is not FunctionType and not issubclass(type(obj), type):
        return ""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__name__", "it")
    if module == HOST_MODULE:
        return f"{name}() is a function of the host, which works in the session's threads only"
    if module != "__main__":
        return ""
    return (
        f"a process that is started anew cannot find {name!r} of a cell: use "
        "multiprocessing.get_context('fork'), write it to a module of the working directory and "
        "import it, or use threads"
    )


def _starts_anew() -> bool:
    """Return whether a child that is no fork runs, or is being started."""
    context, process = (sys.modules[f"multiprocessing.{name}"] for name in ("context", "process"))
    if context.get_spawning_popen() is not None:
        return True
    started = (getattr(child, "_popen", None) for child in list(process._children))
    return any(popen is not None and popen.method != "fork" and _runs(popen) for popen in started)


def _runs(popen: Any) -> bool:
    if popen.poll() is not None:
        return False
    try:
        _kill(popen.pid, 0)
    except OSError:  # the child of a worker that this one replaced
        return False
    return True


_ON_IMPORT: dict[str, Callable[[Any], None]] = {
    "multiprocessing.reduction": _refuse_lost,
    **displays.ON_IMPORT,
}
if sys.version_info >= (3, 14):
    _ON_IMPORT["multiprocessing.context"] = _choose_fork


class _AdaptingFinder:
    """Finds these modules like other finders, and adapts them on import.

    `IPython.display` is there where IPython is not installed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Implement importlib.abc.MetaPathFinder."""
        adapt = _ON_IMPORT.get(name)
        if adapt is None and name != _IPYTHON:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None and name.partition(".")[0] == _IPYTHON:
            return _stand_in(name)
        if spec is None or spec.loader is None or adapt is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_adapt(module: Any) -> None:
            execute(module)
            adapt(module)

        loader.exec_module = execute_and_adapt
        return spec


class _StandIn:
    """The loader of a module that is made, not found."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Implement importlib.abc.Loader."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Implement importlib.abc.Loader."""


def _stand_in(name: str) -> ModuleSpec | None:
    module = displays.stand_in().get(name)
    if module is None:
        return None
    return ModuleSpec(name, _StandIn(module), is_package=name == _IPYTHON)  # type: ignore[arg-type]


def adapt_imports() -> None:
    """Adapt modules in this process and its forks; call before any of them is imported."""
    sys.meta_path.insert(0, _AdaptingFinder())


# Private copies of library modules for the engine, unaffected by changes of session code.
#
# A test leaves `socket.socket` patched, and a guard against harmful code sets `os.fork` and
# `os.getcwd` to None. The session works on with that; its recovery must not be affected.

# Modules without state that their functions rebind, as `threading` does in a fork.
_MODULES = (
    "base64", "contextlib", "enum", "errno", "fcntl", "functools", "gc", "genericpath",
    "itertools", "json", "mmap", "operator", "os", "posixpath", "re", "resource", "select",
    "signal", "socket", "stat", "struct", "time", "types",
)  # fmt: skip


_PACKAGE = __name__.partition(".")[0] + "."
_copies: dict[int, ModuleType] = {}  # by the ids of the modules


def keep_library() -> None:
    """In a template, before it forks: copy these modules for all modules of the engine."""
    copies = {name: _copy(sys.modules[name]) for name in _MODULES if name in sys.modules}
    vars(copies["os"])["path"] = copies["posixpath"]
    # `os.path.exists` and others are functions of genericpath, which call `os.stat`.
    generic, paths = vars(copies["genericpath"]), vars(copies["posixpath"])
    generic["os"] = paths["os"] = copies["os"]
    original = vars(sys.modules["genericpath"])
    paths.update({name: generic[name] for name in original if paths.get(name) is original[name]})
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


# Modules of the session: files of the workspace and of other folders that code can write.
#
# The workspace comes first on `sys.path`, like the folder of a script, then the current
# directory, as in an interactive interpreter. A path hook of this package finds the modules
# there, because the interpreter's trusts file times: it misses a file made within the tick in
# which it listed the folder, and takes the bytecode of a file that was changed within the same
# second. This hook caches nothing: it looks into the folder for each module, and neither reads
# nor writes bytecode. Loaders that session code makes write none either, so that they read none.

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


# Imports of the engine after code of the session has run.
#
# They find the same modules as in the template, whatever the code has put into its folders,
# `sys.path` or `sys.meta_path`: a `difflib.py` in the workspace does not replace the library's.
# Other threads meanwhile import as usual.

_modules = sys.modules
_import_module = importlib.import_module


class _Library:
    """A finder that uses the template's finders on the template's path."""

    def __init__(self) -> None:
        self._thread = 0  # the thread whose imports it serves; 0: none
        self._path: list[str] = []
        self._finders: list[Any] = []
        # The library's modules whose names the session's own modules have.
        self._displaced: dict[str, ModuleType] = {}

    def note(self) -> None:
        """In a template: record the current modules and finders as the library."""
        self._path, self._finders = list(sys.path), list(sys.meta_path)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Implement importlib.abc.MetaPathFinder; raise for no module, so no finder follows."""
        if get_ident() != self._thread:
            return None
        for finder in self._finders:
            places = self._path if path is None and finder is PathFinder else path
            spec: ModuleSpec | None = finder.find_spec(name, places, target)
            if spec is not None:
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Let this thread import from the library alone."""
        if self._thread == get_ident():
            yield
            return
        found = MODULES.found.copy()  # a copy, because threads may import meanwhile
        replaced = {name: _modules.pop(name) for name in found if name in _modules}
        _modules.update(
            {name: self._displaced[name] for name in replaced if name in self._displaced}
        )
        finders = sys.meta_path
        finders.insert(0, self)
        self._thread = get_ident()
        try:
            yield
        finally:
            self._thread = 0
            with suppress(ValueError):  # session code has removed it
                finders.remove(self)
            self._displaced.update({name: _modules[name] for name in replaced if name in _modules})
            _modules.update(replaced)


_library = _Library()
_imported: dict[str, ModuleType] = {}
note_library = _library.note
from_library = _library.only


def import_trusted(name: str) -> Any:
    """Return the module `name` of the library or of this package, for the engine's own use."""
    module = _imported.get(name)
    if module is None:
        with from_library():
            module = _imported[name] = _import_module(name)
        use_copies()
    return module


def loaded_class(module: str, name: str) -> type | None:
    """Return a class of the library if it is loaded and code has not replaced it."""
    kind = getattr(loaded(module), name, None)
    return kind if issubclass(type(kind), type) else None


def loaded(name: str) -> Any:
    """Return the library's module `name` if it has been imported by anyone, else None."""
    saved = _imported.get(name)
    return saved if saved is not None or name in MODULES.found else _modules.get(name)

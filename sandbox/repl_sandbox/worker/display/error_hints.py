"""Hints: one more sentence for errors whose cause the session knows and the exception omits."""

from __future__ import annotations

import builtins
import errno
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import HostCallError
from ..namespace.main_namespace import Namespace
from ..namespace.safe_inspect import class_dict, loaded_class, module_dict, plain, read
from ..namespace.trusted_imports import import_trusted
from ..namespace.workspace_modules import MODULES
from . import non_python_hints

# More names than this are not compared: a hint is not worth a noticeable time.
_CANDIDATES = 2_000
_LONGEST_NAME = 60
# Similarity from which a name counts as intended; Python's own suggestions are about as strict.
_SIMILAR = 0.65

_PROCESSES = "The session's limit of processes and threads (Limits.processes) may be reached."

_BY_ERRNO = {
    errno.EMFILE: "The session's limit of open files (Limits.open_files) is reached.",
    errno.ENFILE: "The system's limit of open files is reached.",
    errno.ENOSPC: "The session's space for files (Limits.workspace) is used up.",
    errno.EFBIG: "The session's limit for the size of a file (Limits.file_size) is reached.",
    errno.EROFS: "In a session only /workspace, /tmp and /dev/shm can be written.",
    errno.ENETUNREACH: "A session has no network.",
    errno.EAFNOSUPPORT: "A session has no network.",
    errno.EAGAIN: _PROCESSES,
}
# Number of causes of an error that are followed.
_CHAIN = 8
# Beginnings of asyncio's messages to a program that expects no running loop, or one.
_OF_LOOPS = (
    "asyncio.run() cannot be called from a running event loop",
    "Runner.run() cannot be called from a running event loop",
    "This event loop is already running",
    "Cannot run the event loop while another loop is running",
    "There is no current event loop in thread 'MainThread'",
    "no running event loop",
)
# Messages of CPython 3.11 to 3.14 and asyncio about a value that cannot be awaited.
_NOT_AWAITABLE = (
    "can't be used in 'await' expression",
    "object can't be awaited",
    "a coroutine was expected, got",
    "An asyncio.Future, a coroutine or an awaitable is required",
)
# Names that IPython puts into the namespace, or takes for commands.
_OF_IPYTHON = {
    "display": "display() is IPython's; a cell shows its last expression, print() the others.",
    "get_ipython": "get_ipython() is IPython's; cells are plain Python.",
    "Out": "Out is IPython's; _ is the last value that was shown, and _out has earlier output.",
    "cd": "cd is a command of a shell; os.chdir() changes the directory.",
    "ls": "ls is a command of a shell; os.listdir() lists files.",
    "pwd": "pwd is a command of a shell; os.getcwd() is the working directory.",
}
# Bytes of private writable memory at the start of a session, the base of its memory limit; set
# once, before any code runs. None: the limit is unknown.
_memory_at_start: int | None = None
_CLOSED = (
    "A session has no network; in tier 'confined' also no locks and queues of multiprocessing."
)
# Outside a jail these have other causes.
_OF_JAILS = (errno.ENOSPC, errno.EROFS, errno.ENETUNREACH, errno.EAFNOSUPPORT)
_OF_NETWORK = (_CLOSED, _BY_ERRNO[errno.ENETUNREACH])


def hint(error: BaseException, namespace: Namespace | None, frame: FrameType | None) -> str:
    """Return a hint about `error`, raised in `frame`, or "".

    Raises:
        RuntimeError: another thread changes a dictionary meanwhile.
    """
    if issubclass(type(error), HostCallError):
        return ""  # about limits and names of the host, not of the session
    found = ""
    for kind, describe in _BY_CLASS:
        if issubclass(type(error), kind):
            found = describe(error, namespace, frame)
            break
    return found or _behind(error)


def _behind(error: Any) -> str:
    """Return that there is no network, where that caused an error of a library."""
    for _ in range(_CHAIN):
        behind = read(error, "__cause__")
        if behind is None and not read(error, "__suppress_context__"):
            behind = read(error, "__context__")
        if behind is None:
            break
        found = _system(behind, None, None) if issubclass(type(behind), OSError) else ""
        if found in _OF_NETWORK:
            return found
        error = behind
    return ""


def assume_no_jail() -> None:
    """Leave out hints about restrictions of a jail; called once, before any code runs."""
    for number in _OF_JAILS:
        _BY_ERRNO.pop(number, None)


def count_memory_from(size: int) -> None:
    """Count this process's memory above `size` towards `Limits.memory` in hints."""
    global _memory_at_start  # noqa: PLW0603 (set before any code runs)
    _memory_at_start = size


def near(name: str, candidates: Iterable[object]) -> str | None:
    """Return the candidate that `name` most likely means, if there is one."""
    if not name or len(name) > _LONGEST_NAME:
        return None
    names = [c for c in candidates if type(c) is str and 0 < len(c) <= _LONGEST_NAME and c != name]
    del names[_CANDIDATES:]
    folded = name.casefold()
    for candidate in names:
        if candidate.casefold() == folded:
            return candidate
    # Imported on demand: errors are rare, and sessions share this module's memory.
    found = import_trusted("difflib").get_close_matches(name, names, n=1, cutoff=_SIMILAR)
    return found[0] if found else None


def _name(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    name = plain(read(error, "name"))
    candidates: list[object] = list(frame.f_locals) if frame is not None else []
    offered: object = builtins
    if namespace is not None:
        candidates += namespace.globals
    if name in _OF_IPYTHON and near(name, candidates) is None:
        return _OF_IPYTHON[name]
    if namespace is not None:
        offered = namespace.globals.get("__builtins__")
    if type(offered) is dict:  # builtins of a language policy
        candidates += [key for key in offered if type(key) is str and key[:1] not in "_<"]
    else:
        candidates += vars(builtins)
    found = near(name, (key for key in candidates if type(key) is str and key[:2] != "__"))
    suggestion = "" if found is None else f"did you mean: {found!r}?"
    if name in sys.stdlib_module_names and type(offered) is not dict:
        return f"Did you forget to import {name!r}?" + (suggestion and f" Or {suggestion}")
    return suggestion[:1].upper() + suggestion[1:]


def _attribute(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    owner = read(error, "obj")
    if type(owner) is ModuleType:
        candidates = list(module_dict(owner))
        if overlooked := _overlooked(module_dict(owner).get("__name__")):
            return overlooked
    elif id(type(owner)) in _BUILTIN_TYPES:
        candidates = list(class_dict(type(owner)))
    else:
        return ""  # listing the attributes of other objects can run code of the user's
    found = near(plain(read(error, "name")), candidates)
    return "" if found is None else f"Did you mean: {found!r}?"


def _system(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    resolver = loaded_class("socket", "gaierror")
    if resolver is not None and issubclass(type(error), resolver):
        return _BY_ERRNO.get(errno.ENETUNREACH, "")
    number = read(error, "errno")
    if number == errno.ENOMEM:
        return _memory(error, namespace, frame)
    if number == errno.EACCES and read(error, "filename") is None:
        # A refusal without a file name is a connection (landlock(7)) or a semaphore.
        return _CLOSED if errno.ENETUNREACH in _BY_ERRNO else ""
    return _BY_ERRNO.get(number, "") if type(number) is int else ""


def _runtime(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    arguments = read(error, "args")
    text = plain(arguments[0]) if arguments else ""
    if text == "can't start new thread":
        return _PROCESSES
    if text.startswith(_OF_LOOPS):
        return "A cell may use 'await' directly, and its event loop runs only while it does."
    return ""


def _awaited(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    """Return the hint for code that awaits the result of a host function."""
    arguments = read(error, "args")
    text = plain(arguments[0]) if arguments else ""
    if namespace is None or frame is None or not any(words in text for words in _NOT_AWAITABLE):
        return ""
    for name in _names(frame.f_code):
        function = namespace.injected.get(name)
        if type(function) in _FUNCTIONS and namespace.globals.get(name) is function:
            return f"{name}() is an ordinary function: it is called without 'await'."
    return ""


def _names(code: CodeType) -> Iterator[str]:
    """Return the names that `code` looks up, and the names defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)


def _module(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    name = plain(read(error, "name"))
    if namespace is not None and name in namespace.globals:
        return f"{name!r} is a variable of this session, and no module."
    # For a module of an existing package, or one of Python's own, the message is complete.
    if not name or "." in name or name in sys.modules or name in sys.stdlib_module_names:
        return ""
    return f"{name!r} is neither installed nor in the working directory: {_packages()}."


def _packages() -> str:
    """Return why a package cannot be installed."""
    closed = "; a session has no network" if errno.ENETUNREACH in _BY_ERRNO else ""
    return f"packages come from the host's environment{closed}"


def _overlooked(name: object) -> str:
    """Return the hint for a file of the session whose module name is loaded already."""
    file = MODULES.overlooked(name) if type(name) is str else ""
    return file and f"{name!r} was loaded before {file} was there: give that file another name."


def _import(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    """Return the hint for a name that a module lacks, or for a library's own message of this."""
    if overlooked := _overlooked(read(error, "name")):
        return overlooked
    behind = read(error, "__cause__")
    if behind is None:
        behind = read(error, "__context__")
    if read(error, "name") is not None or type(behind) is not ModuleNotFoundError:
        return ""
    return _module(behind, namespace, frame)


def _syntax(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    offset = read(error, "offset")
    if type(offset) is not int:
        return ""

    def is_known(name: str) -> bool:
        return hasattr(builtins, name) or (namespace is not None and name in namespace.globals)

    line = plain(read(error, "text")).rstrip("\n")
    return non_python_hints.advice(
        line, max(0, offset - 1), packages=_packages(), is_known=is_known
    )


def _memory(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    number = ""
    if _memory_at_start is not None and limit > _memory_at_start:
        number = f", {(limit - _memory_at_start) / (1 << 20):,.0f} MiB"
    return f"The session's memory limit (Limits.memory{number}) is reached."


def _exit(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    return "The cell ended here; the session goes on, with all its variables."


_FUNCTIONS = (FunctionType, MethodType)
_BUILTIN_TYPES = frozenset(map(id, (str, bytes, int, float, list, tuple, dict, set, frozenset)))

_Classes = type[BaseException] | tuple[type[BaseException], ...]

# The first matching class decides.
_BY_CLASS: tuple[tuple[_Classes, Callable[..., str]], ...] = (
    (NameError, _name),
    (AttributeError, _attribute),
    (OSError, _system),
    (MemoryError, _memory),
    (SystemExit, _exit),
    (RuntimeError, _runtime),
    (ModuleNotFoundError, _module),
    (ImportError, _import),
    (SyntaxError, _syntax),
    ((TypeError, ValueError), _awaited),
)

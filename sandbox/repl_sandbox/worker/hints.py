"""Hints: one more sentence for errors whose cause the session knows and the exception omits."""

from __future__ import annotations

import builtins
import errno
import os
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from ..errors import HostCallError
from .imports import MODULES, import_trusted
from .namespace import (
    HOST_MODULE,
    MISSING,
    THREADS_ONLY,
    Namespace,
    class_dict,
    loaded_class,
    module_dict,
    plain,
    read,
    source_line,
)

# Hints for lines of IPython, a shell or a transcript in place of Python.

# A longer line is text and no command.
_LONGEST = 1_000

_SHELL = (
    "Lines that begin with '!' or '%' are IPython's: leave them out, or run programs by "
    "subprocess.run()."
)
_COMMAND = "This is a command of a shell; subprocess.run() runs programs here."
_PROMPT = "The prompts of a shell, as '>>>', are no part of the code."
_FENCE = "The fences of Markdown, as '```', are no part of the code."
_TAG = "Tags around code, as '<code>', are no part of it."
_LABEL = "{!r} names the language of a block, and is no part of the code: leave the line out."

_MANAGERS = r"(?:pip3?|conda|mamba|micromamba|uv|poetry|pipx|easy_install)"
_SYSTEM_MANAGERS = r"(?:apt|apt-get|yum|dnf|apk|brew|npm)"
_OPTIONS = r"(?>(?:-\S++\s++){0,99})"
_ASSIGNMENT = r"[\w.,\s\[\]'\"]++=\s*+"
# All repetitions are possessive: a line may consist of blanks, and matching takes linear time.
_INSTALLS = re.compile(
    rf"\s*+(?:{_ASSIGNMENT})?[!%$]{{0,2}}\s*+(?:sudo\s++)?"
    r"(?:(?:(?=\S*python)\S++|\{[^}]*+\})\s++-m\s++)?"
    rf"(?:{_MANAGERS}|{_SYSTEM_MANAGERS})\s++{_OPTIONS}(?:pip\s++{_OPTIONS})?"
    r"(?:install|add|update|upgrade|download|sync)\b"
).match
_MANAGES = re.compile(rf"\s*+%{_MANAGERS}\b").match
_ASKS_MANAGER = re.compile(
    rf"\s*+{_MANAGERS}\s++(?:list|show|freeze|uninstall|search|--\w+)\b"
).match

_COMMANDS = re.compile(
    r"\s*+(?:sudo\s++)?(?:awk|bash|cat|cd|chmod|cp|curl|docker|echo|export|find|git|grep|head|ls"
    r"|make|mkdir|mv|node|python3?|rm|rmdir|sed|sh|tail|tar|touch|unzip|wc|wget|which)"
    r"\s++[\w./~'\"$*{-]"
).match

_MAGIC = re.compile(rf"\s*+(?:{_ASSIGNMENT})?[!%]\s*+[\w/.~{{%!$]").match

_QUOTED = re.compile(r"(`{1,2}+)[^`]++\1;?\s*+$").match
_TAGGED = re.compile(r"</?(?:code|execute|ipython|py|python3?|repl|script|tool_code)>").match
# Names of blocks of Markdown that models leave at the beginning of a cell, and of other languages.
_LABELS = frozenset(
    {"code", "ipython", "ipython3", "py", "py3", "pycon", "python", "python2", "python3", "repl",
     "tool_code"}
)  # fmt: skip
_SHELLS = frozenset({"bash", "console", "sh", "shell", "zsh"})


def non_python_label(name: str) -> str:
    """Return the hint for a first line that is the name of a block, or ""."""
    if name.lower() in _LABELS:
        return _LABEL.format(name)
    return _COMMAND if name.lower() in _SHELLS else ""


def non_python_advice(line: str, column: int, *, packages: str) -> str:
    """Return a hint for `line`, which is no Python from `column` on, or "".

    `packages`: the sentence about installing packages.
    """
    if len(line) > _LONGEST:
        return ""
    if _INSTALLS(line) or _MANAGES(line):
        return f"Nothing can be installed here: {packages}."
    if _ASKS_MANAGER(line) or _COMMANDS(line):
        return _COMMAND
    stripped = line.lstrip()
    if stripped.startswith((">>> ", "... ", "In [")):
        return _PROMPT
    if stripped.startswith(("```", "~~~")) or _QUOTED(stripped):
        return _FENCE
    if _TAGGED(stripped):
        return _TAG
    # Elsewhere a line may begin with the operator %, and be wrong further on.
    begins = not line[:column].strip() or not stripped.startswith("%")
    return _SHELL if begins and _MAGIC(line) else ""


# More names than this are not compared: a hint is not worth a noticeable time.
_CANDIDATES = 2_000
_LONGEST_NAME = 60
_LONGEST_MESSAGE = 5_000
# Similarity from which a name counts as intended; Python's own suggestions are about as strict.
_SIMILAR = 0.65

_OWN_FILES = (
    "A session sees files of its own alone, in its working directory; the host puts files there."
)
_PROCESSES = "The session's limit of processes and threads (Limits.processes) may be reached."

_BY_ERRNO = {
    errno.EMFILE: "The session's limit of open files (Limits.open_files) is reached.",
    errno.ENFILE: "The system's limit of open files is reached.",
    errno.ENOSPC: "The session's space for files (Limits.workspace) is used up.",
    errno.EFBIG: "The session's limit for the size of a file (Limits.file_size) is reached.",
    errno.ENETUNREACH: "A session has no network.",
    errno.EAFNOSUPPORT: "A session has no network.",
    errno.ECONNREFUSED: (
        "A session has no network but a loopback of its own, on which only its own programs serve."
    ),
    errno.EAGAIN: _PROCESSES,
}
# Directories that a session can write, its working directory first; in a tier without mounts of its
# own, `have_files_in` sets them before any code runs. Empty outside a jail.
_writable: tuple[str, ...] = ("/workspace", "/tmp", "/dev/shm")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
# A path of a message that has no other field for it: pyarrow, h5py, pandas, duckdb.
_PATH = re.compile(r"""['"](/[^'"\n]{1,4096})['"]""")
# Messages about a file by libraries whose exceptions have no errno.
_OF_FILES = (
    "unable to open database file",  # sqlite3, which does not say which
    "attempt to write a readonly database",
    "Cannot save file into a non-existent directory",  # pandas
    "Unable to synchronously",  # h5py
    "Failed to open local file",  # pyarrow
)
_IO_ERROR = "IO Error: "  # duckdb
_FIGURES = (
    "Figures come with the cell's outcome, and the backend needs no choice: leave the line out."
)
# Messages of matplotlib about backends with windows, and modules of such backends.
_NO_BACKEND = (
    "Cannot load backend",
    "Failed to import any of the following Qt",
    "backend requires",
    "backends require",
    "is not a valid value for backend",
    "cannot import name '_macosx'",
)
_BACKENDS = frozenset(
    {"ipympl", "IPython", "ipykernel", "tornado", "wx", "gi", "cairocffi", "cairo"}
)
_NO_DISPLAY = ("no display name", "couldn't connect to display", "cannot open display")
# Characters of a traceback of another process that are searched.
_REMOTE = 10_000
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
    "get_ipython": "get_ipython() is IPython's; cells are plain Python.",
    "Out": "Out is IPython's; _ is the last value that was shown, and _out has earlier output.",
    "cd": "cd is a command of a shell; os.chdir() changes the directory.",
    "In": "'In [1]:' is a prompt of IPython, and no part of the code.",
    "ls": "ls is a command of a shell; os.listdir() lists files.",
    "pwd": "pwd is a command of a shell; os.getcwd() is the working directory.",
}
# Bytes of private writable memory at the start of a session, the base of its memory limit; set
# once, before any code runs. None: the limit is unknown.
_memory_at_start: int | None = None
# Outside a jail these have other causes.
_OF_JAILS = (
    errno.ENOSPC,
    errno.ENETUNREACH,
    errno.EAFNOSUPPORT,
    errno.ECONNREFUSED,
)
_NO_NETWORK = _BY_ERRNO[errno.ENETUNREACH]
_OF_NETWORK = (_NO_NETWORK, _BY_ERRNO[errno.ECONNREFUSED])
_TERMINALS = "A session has terminals in tier 'jailed' only, and 32 there."
# The message of the module pty, and the calls behind it.
_NO_TERMINAL, _OPENS_TERMINALS = "out of pty devices", frozenset(("openpty", "forkpty"))


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
    return found or _file(error) or _display(error) or _elsewhere(error) or _behind(error)


def _behind(error: Any) -> str:
    """Return that there is no network, or no such place for files, where that caused an error of a
    library.
    """
    for _ in range(_CHAIN):
        behind = read(error, "__cause__")
        if behind is None and not read(error, "__suppress_context__"):
            behind = read(error, "__context__")
        if behind is None:
            break
        found = _system(behind, None, None) if issubclass(type(behind), OSError) else ""
        if found in _OF_NETWORK:
            return found
        if found := _file(behind):
            return found
        error = behind
    return ""


def have_files_in(*writable: str) -> None:
    """Name `writable` in hints, the working directory first; called once, before any code runs."""
    global _writable  # noqa: PLW0603 (set before any code runs)
    _writable = writable


def move_files_to(*writable: str) -> None:
    """In a branch: name its own directories instead of those that it leaves."""
    if _writable:
        have_files_in(*writable)


def assume_no_jail() -> None:
    """Leave out hints about restrictions of a jail; called once, before any code runs."""
    have_files_in()
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
    if frame is not None and _is_first_line(name, frame) and (label := non_python_label(name)):
        return label
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


def _is_first_line(name: str, frame: FrameType) -> bool:
    """Return whether the name stands alone in the first line of the cell that `frame` runs."""
    code = frame.f_code
    if code.co_name != "<module>":
        return False
    number = frame.f_lineno
    before = (source_line(code.co_filename, line) for line in range(1, min(number, 10)))
    alone = (source_line(code.co_filename, number) or "").strip() == name
    return alone and all((line or "").lstrip()[:1] in ("", "#") for line in before)


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
    if errno.ENETUNREACH in _BY_ERRNO and _wants_terminal(error):
        return _TERMINALS
    number = read(error, "errno")
    if number == errno.ENOMEM:
        return _memory(error, namespace, frame)
    if number == errno.EACCES and read(error, "filename") is None:
        # A refusal without a file name is a connection (landlock(7)).
        return _NO_NETWORK if errno.ENETUNREACH in _BY_ERRNO and not _file(error) else ""
    if number == errno.ENOENT and _is_of_host(error) and not _file(error):
        return _OWN_FILES
    return _BY_ERRNO.get(number, "") if type(number) is int else ""


def _is_of_host(error: Any) -> bool:
    """Return whether the error is about a file that only the host may have: one that was opened by
    its name while the working directory is empty, or in a directory that is not there.
    """
    path = plain(read(error, "filename"), _LONGEST_MESSAGE)
    if not path or read(error, "filename2") is not None:
        return False
    folder = os.path.dirname(path)
    if path.startswith("/"):
        is_own = path.startswith(tuple(f"{each}/" for each in _writable[:1]))
        return not is_own and not os.path.isdir(folder)
    return not folder and not os.listdir()


def _file(error: Any) -> str:
    """Return which directories can be written, if `error` is about a file elsewhere."""
    number = read(error, "errno") if issubclass(type(error), OSError) else None
    if number == errno.EROFS:
        return _only_writable()
    path = plain(read(error, "filename"), _LONGEST_MESSAGE)
    arguments = read(error, "args")
    text = plain(arguments[-1], _LONGEST_MESSAGE) if arguments and not path else ""
    of_file = text.startswith(_OF_FILES)
    if of_file or type(number) is int or _IO_ERROR in text:
        named = _PATH.search(text)
        path = named[1] if named else path
    if path.startswith(tuple(f"{each}/" for each in _writable)):
        return ""
    if not of_file:
        if not path.startswith("/"):
            return ""
        if number not in _REFUSED and os.path.isdir(os.path.dirname(path)):
            return ""
    return _only_writable()


def _only_writable() -> str:
    if not _writable:
        return ""
    workspace, *others = _writable
    first = ", ".join([f"{workspace} (the working directory)", *others[:-1]])
    return f"In a session only {first} and {others[-1]} can be written."


def _wants_terminal(error: Any) -> bool:
    """Return whether the error is about a pseudo-terminal that could not be opened."""
    arguments = read(error, "args")
    if arguments and plain(arguments[0]) == _NO_TERMINAL:
        return True
    trace = read(error, "__traceback__")
    while type(trace) is TracebackType and trace.tb_next is not None:
        trace = trace.tb_next
    return type(trace) is TracebackType and not _OPENS_TERMINALS.isdisjoint(
        trace.tb_frame.f_code.co_names
    )


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
    if name in _BACKENDS and "matplotlib" in sys.modules:
        return _FIGURES
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

    line = plain(read(error, "text")).rstrip("\n")
    return non_python_advice(line, max(0, offset - 1), packages=_packages())


def _memory(error: Any, namespace: Namespace | None, frame: FrameType | None) -> str:
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    number = ""
    if _memory_at_start is not None and limit > _memory_at_start:
        number = f", {(limit - _memory_at_start) / (1 << 20):,.0f} MiB"
    return f"The session's memory limit (Limits.memory{number}) is reached."


def _display(error: Any) -> str:
    arguments = read(error, "args")
    text = plain(arguments[0]) if arguments is not MISSING and arguments else ""
    if "matplotlib" in sys.modules and any(words in text for words in _NO_BACKEND):
        return _FIGURES
    return "A session has no display." if text.startswith(_NO_DISPLAY) else ""


def _elsewhere(error: Any) -> str:
    """Return the hint for a host function that was sent to a process which cannot call it."""
    for _ in range(_CHAIN):
        arguments = read(error, "args")
        texts = arguments if type(arguments) is tuple else ()
        if any(f"No module named {HOST_MODULE!r}" in plain(text, _REMOTE) for text in texts):
            return THREADS_ONLY[:1].upper() + THREADS_ONLY[1:] + "."
        behind = read(error, "__cause__")
        error = read(error, "__context__") if behind is None else behind
        if error is None:
            break
    return ""


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

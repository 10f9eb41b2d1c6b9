"""Threads and processes that libraries keep for later calls, in a fork that lacks them.

A library that was used before the fork believes that its pool still runs, and a call that hands
work to the pool waits for ever. `restart` makes each pool of the table anew, or forgets it so that
the next call makes another. A library whose pool cannot be made anew raises RuntimeError
instead of waiting.

Libraries that repair themselves (`pthread_atfork`, a look at the process id) have no row: OpenBLAS,
LLVM's and Intel's OpenMP, pyarrow, numexpr, blosc2, jemalloc, gRPC.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

_get_objects = gc.get_objects
_TASKS = "/proc/self/task"
_RTLD_DI_TLS_MODID = 9  # dlinfo(3)
_PT_TLS = 7  # elf(5)
_gone: list[str] = []
_LOST_WORK = "the work was lost when the session was restored; submit it again"


@dataclass(frozen=True, slots=True)
class LibraryPool:
    """One library's pool.

    `threads`: how the kernel's names of its threads begin. `idle`: the threads that it has besides.
    """

    library: str
    restart: Callable[[], None]
    reason: str
    threads: tuple[str, ...] = ()
    idle: int = 0


def lost_threads(python: Collection[int]) -> list[str]:
    """Return the libraries whose threads a fork loses for good, and names of unknown threads.

    `python`: the threads that Python knows, by the kernel's numbers.
    """
    try:
        names = _thread_names(python)
    except OSError:  # /proc cannot be read
        count = os.stat(_TASKS).st_nlink - 3 - len(python)
        loaded = [row for row in UNREPAIRED if row.library in sys.modules]
        return [row.library for row in loaded if count > row.idle]
    lost = [row.library for row in UNREPAIRED if any(n.startswith(row.threads) for n in names)]
    return lost + [name for name in names if not name.startswith(_KNOWN)]


def describe(lost: Iterable[str]) -> list[str]:
    """Return the names of losses for a result of `lost_threads`."""
    libraries = {row.library for row in UNREPAIRED}
    return [
        f"the threads of {name}, whose next call raises"
        if name in libraries
        else f"threads of C code named {name!a}, for which a call may wait until its time is up"
        for name in lost
    ]


def gone() -> list[str]:
    """Return the unknown threads that this process lacks because a fork lost them.

    They are named with each later loss: a call that waits for them ends by its time-out only.
    """
    return _gone


def restart(lost: Collection[str], *, threads: bool) -> None:
    """In the fork: make the pools anew; `lost` is the result of `lost_threads` before the fork.

    `threads`: whether the process had other threads.
    """
    if not threads and not any(module in sys.modules for module in _WITH_HELPERS):
        return  # a branch copies each page that it writes to, and a call writes to several
    libraries = set(lost)
    known = {row.library for row in UNREPAIRED}
    _gone.extend(name for name in lost if name not in known and name not in _gone)
    rows = (*RESTARTED, *(row for row in UNREPAIRED if row.library in libraries))
    for row in rows if threads else RESTARTED_PROCESSES:
        # Boundary: the session's code may have replaced anything in a library.
        with suppress(Exception):
            row.restart()


def _thread_names(python: Collection[int]) -> list[str]:
    """The kernel's names of the threads that have another than the main thread's; each once.

    Raises:
        OSError: they cannot be read.
    """
    names: dict[str, None] = {}
    main = ""
    for task in sorted(map(int, os.listdir(_TASKS))):
        with open(f"{_TASKS}/{task}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
        if task == os.getpid():
            main = name
        elif task not in python:
            names[name] = None
    return [name for name in names if name != main]


# ── OpenMP ────────────────────────────────────────────────────────────────────────────────────


class _LinkMap(ctypes.Structure):
    """The public part of the dynamic linker's `struct link_map`."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
    )


def _forget_openmp() -> None:
    """Give this thread the OpenMP state of a new thread, for every copy of the library.

    The copies of libgomp keep the pool in thread-local storage, and have no handler for forks. A
    new thread has the initial contents of that storage, and makes a pool when it needs one.
    """
    linker = ctypes.CDLL(None)
    address: int | None = linker._handle
    while address:
        library = _LinkMap.from_address(address)
        path = os.fsdecode(library.name or b"")
        if os.path.basename(path).startswith("libgomp"):
            copy = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
            count = copy.omp_get_max_threads()
            _reset_storage(linker, address, library.base)
            copy.omp_set_num_threads(count)
        address = library.next


def _reset_storage(linker: Any, handle: int, base: int) -> None:
    module = ctypes.c_size_t(0)
    if linker.dlinfo(ctypes.c_void_p(handle), _RTLD_DI_TLS_MODID, ctypes.byref(module)):
        return
    find = linker["__tls_get_addr"]
    find.restype = ctypes.c_void_p
    storage = find(ctypes.byref((ctypes.c_size_t * 2)(module.value, 0)))
    for start, filled, size in _initial_storage(base):
        ctypes.memset(storage, 0, size)
        ctypes.memmove(storage, base + start, filled)


def _initial_storage(base: int) -> Iterator[tuple[int, int, int]]:
    """Of a loaded 64-bit library: the place and bytes of its thread-local data, and the size."""
    header = ctypes.string_at(base, 64)
    table, size = int.from_bytes(header[32:40], "little"), header[54]
    for number in range(header[56]):
        row = ctypes.string_at(base + table + number * size, size)
        if int.from_bytes(row[:4], "little") == _PT_TLS:
            start, _, filled, total = (
                int.from_bytes(row[place : place + 8], "little") for place in (16, 24, 32, 40)
            )
            yield start, filled, total


# ── processes of Python's own libraries ───────────────────────────────────────────────────────


def _variables(module: str) -> dict[str, Any]:
    return vars(sys.modules[module]) if module in sys.modules else {}


def _forget_helper(module: str, variable: str, attributes: tuple[str, ...]) -> None:
    """Let an object make its helper process anew: close its descriptors, and forget the rest."""
    helper = _variables(module).get(variable)
    if helper is None:
        return
    for name in attributes:
        value = getattr(helper, name, None)
        if name.endswith("fd") and value is not None:
            with suppress(OSError):
                os.close(value)  # a placeholder
        setattr(helper, name, None)


def _forget_trackers() -> None:
    for module in (
        "multiprocessing.resource_tracker",
        "multiprocess.resource_tracker",
        "joblib.externals.loky.backend.resource_tracker",
        "loky.backend.resource_tracker",
    ):
        _forget_helper(module, "_resource_tracker", ("_fd", "_pid"))


def _forget_fork_servers() -> None:
    attributes = "_forkserver_alive_fd", "_forkserver_address", "_forkserver_pid"
    for module in ("multiprocessing.forkserver", "multiprocess.forkserver"):
        _forget_helper(module, "_forkserver", attributes)
    # The directory of its sockets: a branch may not connect in that of the original.
    process = _variables("multiprocessing.process").get("_current_process")
    if process is not None:
        process._config.pop("tempdir", None)


def _forget_loky() -> None:
    for package in ("joblib.externals.loky", "loky"):
        variables = _variables(f"{package}.reusable_executor")
        if variables:
            _forget_manager(variables.get("_executor"))
            variables.update(_executor=None, _executor_kwargs=None)


def _renew_pools() -> None:
    """Let pools of multiprocessing begin anew with their next work."""
    for pool in _objects("multiprocessing.pool", "Pool"):
        attributes = vars(pool)
        if attributes.get("_state") == "RUN":
            attributes["_state"] = "TERMINATE"  # so that its collection speaks to no thread
            attributes["_terminate"].cancel()
            for result in list(attributes["_cache"].values()):
                result._success, result._value = False, RuntimeError(_LOST_WORK)
                result._event.set()
            attributes["_check_running"] = partial(_begin_pool, pool)


def _begin_pool(pool: Any) -> None:
    """The check that each method of a pool begins with: start processes, or threads."""
    attributes = vars(pool)
    del attributes["_check_running"]
    settings = [attributes[f"_{name}"] for name in ("processes", "initializer", "initargs")]
    if not isinstance(pool, _variables("multiprocessing.pool")["ThreadPool"]):
        settings += [attributes["_maxtasksperchild"], attributes["_ctx"]]
    type(pool).__init__(pool, *settings)


def _renew_executors() -> None:
    """Let executors of processes begin anew: they start processes with their next work."""
    for executor in _objects("concurrent.futures.process", "ProcessPoolExecutor"):
        attributes = vars(executor)
        if attributes.get("_executor_manager_thread") is not None:
            _forget_manager(executor)
            for item in list(attributes["_pending_work_items"].values()):
                item.future.set_exception(RuntimeError(_LOST_WORK))
            type(executor).__init__(
                executor,
                attributes["_max_workers"],
                attributes["_mp_context"],
                attributes["_initializer"],
                attributes["_initargs"],
                max_tasks_per_child=attributes.get("_max_tasks_per_child"),
            )


def _forget_manager(executor: Any) -> None:
    """Drop the reference whose callback would wake the executor's thread."""
    manager = getattr(executor, "_executor_manager_thread", None)
    if manager is not None:
        manager.executor_reference = None


def _fail_lost_work() -> None:
    """Let the futures of work that a thread was doing have an exception: no thread ends them."""
    for future in _objects("concurrent.futures._base", "Future"):
        if vars(future).get("_state") == "RUNNING":
            future.set_exception(RuntimeError(_LOST_WORK))


def _objects(module: str, name: str) -> list[Any]:
    kind = _variables(module).get(name)
    if not isinstance(kind, type):
        return []
    return [found for found in _get_objects() if issubclass(type(found), kind)]


def _calm_tokenizers() -> None:
    if "tokenizers" in sys.modules:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


# ── libraries that cannot be repaired ─────────────────────────────────────────────────────────

# Methods of polars that read what is there, without its threads: the data can be saved.
_READ = frozenset({
    "__arrow_c_schema__", "__arrow_c_stream__", "__bool__", "__class_getitem__", "__contains__",
    "__copy__", "__deepcopy__", "__del__", "__getitem__", "__getstate__", "__init__", "__iter__",
    "__len__", "__reduce__", "__repr__", "__reversed__", "__setstate__", "__str__", "clone",
    "get_column", "get_columns", "head", "is_empty", "item", "iter_columns", "iter_rows", "limit",
    "row", "rows", "slice", "tail", "to_arrow", "to_dict", "to_dicts", "to_list", "to_pandas",
    "to_series", "write_json",
})  # fmt: skip
_POLARS_CLASSES = ("DataFrame", "LazyFrame", "Series")
# Functions of polars that run a query, and not only describe one.
_RUNS_QUERIES = (
    *("read_", "scan_", "from_", "collect_all", "concat", "select", "sql", "align_frames"),
)


def _guard_polars() -> None:
    variables = _variables("polars")
    for name in _POLARS_CLASSES:
        for method, value in list(vars(variables[name]).items()):
            public = method[:1] != "_" or method[:2] == "__" == method[-2:]
            if public and method not in _READ:
                _guard(value, "polars")
    for name, value in list(variables.items()):
        if name.startswith(_RUNS_QUERIES):
            _guard(value, "polars")
    for module in ("polars.dataframe.group_by", "polars.lazyframe.group_by"):
        for kind in list(_variables(module).values()):
            if isinstance(kind, type) and kind.__module__ == module:
                for method, value in list(vars(kind).items()):
                    if method[:1] != "_":
                        _guard(value, "polars")


def _guard(function: object, library: str) -> None:
    """Let `function` raise RuntimeError at its next call, by whatever name it is known."""
    if type(function) is FunctionType:
        raising: Any = _raise_lost.__code__
        function.__code__ = raising.replace(co_freevars=function.__code__.co_freevars)
        text = f"{library} lost its threads when the session was restored; restart the session"
        # A default, because the code runs with the globals of the library.
        function.__kwdefaults__ = {"_lost": partial(RuntimeError, text)}


def _raise_lost(*args: object, _lost: Callable[[], Exception], **kwargs: object) -> None:
    raise _lost()


# Pools of processes, which may be there without a thread of this process; and the modules without
# which none is.
_WITH_HELPERS = ("multiprocessing.process", "multiprocess.process", "joblib", "loky")
RESTARTED_PROCESSES = (
    LibraryPool(
        "resource trackers", _forget_trackers, "semaphores and shared memory of multiprocessing"
    ),
    LibraryPool("fork servers", _forget_fork_servers, "a start method of multiprocessing"),
)
RESTARTED = (
    *RESTARTED_PROCESSES,
    LibraryPool(
        "GNU OpenMP", _forget_openmp, "scikit-learn, LightGBM, XGBoost, faiss, torch, numba"
    ),
    LibraryPool(
        "tokenizers", _calm_tokenizers, "its own answer to a fork; a value set by code is older"
    ),
    LibraryPool(
        "loky", _forget_loky, "joblib's processes: one executor, which calls find by itself"
    ),
    LibraryPool(
        "multiprocessing.Pool", _renew_pools, "it belongs to a variable; a map would never end"
    ),
    LibraryPool(
        "ProcessPoolExecutor", _renew_executors, "it belongs to a variable, and starts late"
    ),
    LibraryPool(
        "futures", _fail_lost_work, "of both kinds of executor; a wait for one would never end"
    ),
)
# Of a new pool, a busy machine may have run any one thread; the others have no name yet.
_POLARS_THREADS = tuple(f"polars-{digit}" for digit in range(10))
UNREPAIRED = (
    LibraryPool(
        "polars", _guard_polars, "rayon makes one pool in a process", _POLARS_THREADS, idle=1
    ),
)
# Threads of libraries in the table, or that repair themselves.
_KNOWN = ("jemalloc_bg_thd", "polars-", "async-executor-", "tokio-rt-w")

"""`SealedTemplate`: the view, modules, shared objects and frozen heap that sessions begin with."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from errno import ENOSYS
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import IsolationError, SandboxError
from ..jail import (
    landlock,
    mounts,
    processes,
    reserved_descriptors,
    seccomp,
    session_directory,
    steps,
    users,
)
from ..jail.steps import Jail
from ..native import forks, libc, library
from ..types import PACKAGE_DIR, Policy
from ..worker.evaluation import attribute_to_cells
from ..worker.hints import count_memory_from
from ..worker.imports import MODULES, adapt_imports, keep_library, note_library
from ..worker.main import Worker
from ..worker.namespace import install_lookup
from ..worker.streams import open_streams
from ..worker.tracebacks import hide_files_of_library
from .warmup import compact_heap, immortalise, warm_up_init, warm_up_worker

if TYPE_CHECKING:
    from ..policies.rules import PolicyRules


# Places of the host that an interpreter needs: directories, and the links to its program.


def interpreter_directories() -> dict[str, str]:
    """The directories that hold the interpreter, its libraries and this package.

    Both the names in use and the paths that they resolve to: a name may contain a symbolic link,
    which would lead nowhere in a view of its own, and libraries are found by either.
    """
    named = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, PACKAGE_DIR}
    candidates = named | {os.path.realpath(path) for path in named}
    covered = ("/usr/",)
    return {
        path: os.path.realpath(path)
        for path in sorted(candidates)
        if not f"{path}/".startswith(covered)
        and not any(path.startswith(f"{other}/") for other in candidates)
    }


def interpreter_links(program: str) -> dict[str, str]:
    """Return the symbolic links that lead to `program`, each with its target.

    The program of a virtual environment is often a link to a link: to that of uv, pyenv or an
    operator, which leads to the interpreter. Code that runs `sys.executable` needs all of them.
    """
    found: dict[str, str] = {}
    place, names = "/", program.split("/")[::-1]
    while names:
        name = names.pop()
        path = os.path.normpath(f"{place}/{name}")
        if path in found or not os.path.islink(path):
            place = path
            continue
        found[path] = os.readlink(path)
        place = "/" if found[path].startswith("/") else place
        names += found[path].split("/")[::-1]
    return found


# `unpack_objects`: loads the host's shared objects into a template, copied into place, not parsed.
#
# The host packs them (`repl_sandbox.host.shared_objects`). Large memory is allocated in
# huge pages, for which a fork copies one entry for each 2 MB instead of one for each page.

# The version of marshal without references between objects; the same in all versions of Python 3.
FORMAT = 2

# Smaller sizes are not worth a memory area of their own, which advice on a part of an area makes.
_HUGE = 4 << 20

# name, kind, offset, bytes, and what else the kind needs
Row: TypeAlias = tuple[str, str, int, int, Any]

_new_text = ctypes.pythonapi.PyUnicode_New
_new_text.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32]
_new_text.restype = ctypes.py_object
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object


def unpack_objects(fd: int, offset: int, size: int) -> dict[str, object]:
    """Return the objects in file `fd` by their names; its manifest has `size` bytes at `offset`.

    Raises:
        SandboxError: the memory does not suffice, or numpy cannot be imported for an array.
    """
    try:
        rows: list[Row] = marshal.loads(_read(fd, offset, size))
        return {name: _MAKE[kind](fd, start, size, form) for name, kind, start, size, form in rows}
    except MemoryError:
        raise SandboxError("there is no memory for the objects to share") from None


def _read(fd: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    _fill(memoryview(data), fd, offset)
    return data


def _fill(remaining: memoryview, fd: int, offset: int) -> None:
    while remaining:
        size = os.preadv(fd, [remaining], offset)
        if not size:
            raise EOFError("the parcel is shorter than its manifest says")
        remaining, offset = remaining[size:], offset + size


def _fill_at(address: int, fd: int, offset: int, size: int) -> None:
    if size >= _HUGE:
        libc.advise_huge_pages(address, size)
    _fill(memoryview((ctypes.c_char * size).from_address(address)).cast("B"), fd, offset)


def _value(fd: int, offset: int, size: int, form: Any) -> object:
    return marshal.loads(_read(fd, offset, size))


def _text(fd: int, offset: int, size: int, form: tuple[int, int]) -> str:
    width, largest = form
    text: str = _new_text(size // width, largest)
    # It ends with the characters and one null of the same width; a new one has no other parts.
    header = sys.getsizeof(text) - size - width
    _fill_at(id(text) + header, fd, offset, size)
    return text


def _bytes(fd: int, offset: int, size: int, form: Any) -> bytes:
    data: bytes = _new_bytes(None, size)
    _fill_at(id(data) + sys.getsizeof(data) - size - 1, fd, offset, size)
    return data


def _array(fd: int, offset: int, size: int, form: tuple[Any, tuple[int, ...], bool]) -> object:
    described, shape, fortran = form
    try:
        numpy = importlib.import_module("numpy")
        words = importlib.import_module("numpy.lib.format")
        importlib.import_module("numpy.random")  # numpy imports it lazily
    # Boundary: importing runs any code of the interpreter's installation.
    except Exception as error:
        raise SandboxError(f"numpy, for an array: {type(error).__name__}: {error}") from error
    array = numpy.empty(shape, words.descr_to_dtype(described), order="F" if fortran else "C")
    if size:  # numpy asks for huge pages itself
        _fill(memoryview((array.T if fortran else array).reshape(-1).view("u1")), fd, offset)
    return array


_MAKE: dict[str, Callable[[int, int, int, Any], object]] = {
    "value": _value,
    "text": _text,
    "bytes": _bytes,
    "array": _array,
}


# `TemplateBase`: the view, the Landlock rules, the filters and the directory of a tier's
# sessions.


@dataclass(frozen=True, slots=True)
class TemplateBase:
    """The base of a tier's sessions, made before anything is imported."""

    files: landlock.Plan
    base_filter: bytes = b""
    final_filter: bytes = b""
    base: str = ""
    interpreter: Sequence[str] = ()
    covered: Mapping[str, str] = field(default_factory=dict)
    pinned: Sequence[int] = ()
    readable: Sequence[str] = ("/",)

    def shows(self, path: str) -> bool:
        """Return whether a session can import from `path`."""
        roots = tuple(f"{root.rstrip('/')}/" for root in self.readable)
        return os.path.exists(path) and f"{path}/".startswith(roots)


def prepare_base(
    tier: str, mounted: Mapping[str, str], place: str, privileged: bool
) -> TemplateBase:
    """Make the base of sessions of `tier`; the arguments are those of `build`.

    Raises:
        IsolationError: a part of it cannot be made here.
        SandboxError: the tier does not support `mounted`.
    """
    return _BASES[tier](mounted, place, privileged)


def _prepare_alone(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    """As `confined`, with what the kernel supports: there are no other sessions to be separated
    from.
    """
    if _landlock_abi("alone"):
        return _prepare_confined(mounted, place, privileged)
    arch = seccomp.native_arch()
    libc.number("seccomp")
    open_streams()
    base = _make_base("alone", mounted, place)
    processes.adopt_orphans(needed=False)  # else the container's first process does
    processes.hide_memory()
    return TemplateBase(
        landlock.plan((), 0),
        seccomp.base_program(arch, "confined"),
        seccomp.final_program(arch, "confined"),
        base,
        list(interpreter_directories()),
    )


def _prepare_jailed(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    arch = seccomp.native_arch()
    libc.number("seccomp")
    open_streams()
    shown = {**interpreter_directories(), **mounted}
    _enter_view(privileged, shown, interpreter_links(sys.executable))
    abi = _landlock_abi("jailed")
    files = landlock.plan(landlock.JAILED, abi, landlock.TRIAL, own_network=True)
    return TemplateBase(
        files,
        seccomp.base_program(arch),
        seccomp.final_program(arch),
        covered=mounts.covered(shown),
    )


def _prepare_confined(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    arch = seccomp.native_arch()
    libc.number("seccomp")
    abi = _landlock_abi("confined")
    if not abi:
        raise steps.step_error("Landlock", OSError(ENOSYS, "the kernel has none"), "confined")
    open_streams()
    base = _make_base("confined", mounted, place)
    interpreter = list(interpreter_directories())
    shown = [
        *landlock.CONFINED,
        *landlock.cgroup_limits(),
        *(landlock.Grant(path, landlock.RUN, "the interpreter") for path in interpreter),
        *(landlock.Grant(path, landlock.RUN, "shown by the operator") for path in mounted),
    ]
    try:
        files = landlock.plan(shown, abi, _trial(base))
        pinned = landlock.pin(files)
    except OSError as error:
        session_directory.remove_base(base)
        raise steps.step_error("Landlock", error, "confined") from error
    processes.adopt_orphans()
    processes.hide_memory()
    return TemplateBase(
        files,
        seccomp.base_program(arch, "confined"),
        seccomp.final_program(arch, "confined"),
        base,
        interpreter,
        pinned=pinned,
        readable=[path for path, _ in files.rules],
    )


def _prepare_process(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    open_streams()
    base = _make_base("process", mounted, place)
    processes.adopt_orphans()
    return TemplateBase(landlock.plan((), 0), base=base)


_BASES: Mapping[str, Callable[[Mapping[str, str], str, bool], TemplateBase]] = {
    "jailed": _prepare_jailed,
    "confined": _prepare_confined,
    "alone": _prepare_alone,
    "process": _prepare_process,
}


def _landlock_abi(tier: str) -> int:
    """The version of the kernel's Landlock, 0 if it has none."""
    try:
        return landlock.kernel_abi()
    except OSError as error:
        raise steps.step_error("Landlock", error, tier) from error


def _make_base(tier: str, mounted: Mapping[str, str], place: str) -> str:
    """Make the directory of the sessions' directories, and in it one of the template's own."""
    for inside, outside in mounted.items():
        if inside != outside:
            raise SandboxError(
                f"mounts: tier {tier} has no view of its own, so {outside!r} cannot be shown at "
                f"{inside!r}; show it where it is, or use tier jailed"
            )
    try:
        base = session_directory.make_base(place)
        os.mkdir(f"{base}/template")
        os.chmod(f"{base}/template", 0o755)
    except OSError as error:
        raise steps.step_error("folder", error, tier) from error
    os.environ["HOME"] = os.environ["TMPDIR"] = f"{base}/template"
    os.environ["MPLCONFIGDIR"] = f"{base}/template/matplotlib"
    os.environ["XDG_CACHE_HOME"] = f"{base}/template/cache"
    return base


def _trial(base: str) -> str:
    """Make a file that everybody may write to by its mode, and that no rule names."""
    path = f"{base}/template/trial"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    os.fchmod(fd, 0o666)
    os.close(fd)
    return path


def _enter_view(privileged: bool, shown: Mapping[str, str], links: Mapping[str, str]) -> None:
    try:
        if not privileged:
            # An ordinary user may mount only with the capabilities of a user namespace of its own.
            # It has no uid 0, which would own the kernel's files on sessions' networks, and be the
            # same user as their code.
            users.enter_namespace(users.CODE_ID)
        libc.unshare(libc.CLONE_NEWNS)
    except OSError as error:
        raise steps.step_error("namespaces", error) from error
    try:
        mounts.stage(shown, links)
    except OSError as error:
        raise steps.step_error("root", error) from error


# `SealedTemplate`: a read-only view, preloaded modules, a frozen heap, one thread.
#
# No code of a session ever ran in it; sessions are forked from it.

# Bytes. A block that a cell allocates and frees, such as a str of 1 MB and its encoded bytes, is
# reused without a page fault for each 4 KiB; twice that stays with an idle session.
_KEPT_FREE = 2 << 20
# Seconds in which a thread may end that a preloaded module has started.
_THREAD_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SealedTemplate:
    """The common state of the sessions of this template."""

    tier: str
    privileged: bool  # each session has uids of its own
    last_capability: int
    final_filter: bytes
    files: landlock.Plan
    base: str  # each session's directory is below it; "" if they have mounts
    interpreter: Sequence[str]  # as jail.Jail has it
    covered: Mapping[str, str]  # as mounts.covered has it
    pinned: Sequence[int]  # as landlock.pin has it
    worker: Worker  # made here once, so that sessions need not build them
    data_segment: int  # bytes of private writable memory of a session at its start
    filled: Sequence[object]  # as of heap_compaction.compact_heap
    ready: bytes  # the first message of a first worker that needs no Python to start; b"": it does
    nested: bool = False  # forked from another, whose directory `base` is


def build(
    preload: Sequence[str],
    mounted: Mapping[str, str],
    tier: str,
    place: str,
    policy: Policy | None = None,
    *,
    privileged: bool,
) -> SealedTemplate:
    """Turn this process into a template of sessions of `tier`.

    `mounted`: paths to show besides the interpreter's, by paths inside. `place`: where directories
    of sessions may be made. `privileged`: this process is root on the host, not only inside.

    Raises:
        IsolationError: the view cannot be built, the native library cannot be loaded, or a thread
            is still running.
        SandboxError: a module of `preload` or of `policy` cannot be imported in the session's view,
            or the tier does not support `mounted`.
    """
    library.load()
    base = prepare_base(tier, mounted, place, privileged)
    try:
        return _seal(base, preload, policy, tier, privileged=privileged and tier != "process")
    except BaseException:
        if base.base:
            session_directory.remove_base(base.base)
        raise


def _seal(
    base: TemplateBase,
    preload: Sequence[str],
    policy: Policy | None,
    tier: str,
    *,
    privileged: bool,
) -> SealedTemplate:
    """Import modules, restrict this process, warm it up, and freeze its heap, in this order."""
    _import_modules(base, preload, tier)
    rules = None if policy is None else _rules(policy)
    _load_filter(base)
    _install_hooks(rules)
    warm_up_init(Jail(None, 0, [], 0, b"", base.files, tier, snapshots=0), Worker(rules))
    warm_up_worker(rules)
    gc.collect()
    filled = compact_heap()
    worker = _make_worker(rules, tier)
    # The first steps of the other tiers' workers are more than system calls.
    ready = worker.prepare(reserved_descriptors.WORKER) if tier == "jailed" else b""
    gc.collect()
    filled += compact_heap()
    immortalise()
    gc.freeze()
    grown = _fix_heap_size()
    count_memory_from(grown)
    # A collection would write to, and so copy, pages that init and the zygote only read.
    gc.disable()
    return SealedTemplate(
        tier,
        privileged,
        users.last_capability(),
        base.final_filter,
        base.files,
        base.base,
        base.interpreter,
        base.covered,
        base.pinned,
        worker,
        grown,
        filled,
        ready,
    )


def _import_modules(base: TemplateBase, preload: Sequence[str], tier: str) -> None:
    # Paths outside of the view cannot be imported, and are private to the host.
    sys.path[:] = [path for path in sys.path if base.shows(path)]
    sys.argv[:] = [""]
    adapt_imports()
    with _scratch(tier, base) if preload else contextlib.nullcontext():
        for name in preload:
            # A thread inherits the mask: signals are for the thread that remains.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                _preload(name)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _check_threads(name, tier)
    if "numpy" in sys.modules:
        # numpy imports it lazily; each session needs it to seed its generator.
        _preload("numpy.random")


def _load_filter(base: TemplateBase) -> None:
    forks.thread_id_at()  # for all forks: the filter refuses this query
    if base.base_filter:
        processes.forbid_new_privileges()
        seccomp.load(base.base_filter)


def _install_hooks(rules: PolicyRules | None) -> None:
    """Change modules of the library for sessions, and keep the engine's own copies of others."""
    note_library()
    hide_files_of_library()
    if rules is None or rules.check_module is not None:
        MODULES.install(None if rules is None else rules.check_module)
    attribute_to_cells()
    install_lookup()
    keep_library()


def _make_worker(rules: PolicyRules | None, tier: str) -> Worker:
    """Make the worker of all sessions."""
    worker = Worker(rules)
    worker.watch_forks()
    worker.watch_streams()
    if tier == "jailed":
        worker.import_from(mounts.WORKSPACE)
    return worker


def _fix_heap_size() -> int:
    """Release free memory that sessions do not need; return the size of the data segment.

    A session's memory counts from that size on, and would grow again after shrinking, so the larger
    of the sizes before and after counts.
    """
    before = data_segment()
    libc.keep_freed(_KEPT_FREE)
    libc.trim_heap()  # each fork copies an entry for each page
    libc.empty_end(_KEPT_FREE)  # after `keep_freed`, from when on the heap keeps so much
    return max(before, data_segment())


def _scratch(tier: str, base: TemplateBase) -> AbstractContextManager[None]:
    """A writable directory for modules that write when they are imported, such as matplotlib."""
    # The other tiers have a directory of the template's own.
    return mounts.writable(base.covered) if tier == "jailed" else contextlib.nullcontext()


def _preload(name: str) -> None:
    try:
        importlib.import_module(name)
    # Boundary: importing runs any code, and its exceptions must reach the host as SandboxError.
    except Exception as error:
        raise SandboxError(f"preload: {name}: {type(error).__name__}: {error}") from error


def _check_threads(name: str, tier: str) -> None:
    """Raise IsolationError if a thread is left by module `name`, for some time also one that ends.

    Forks lack it, and a lock that it holds would stay locked in them.
    """
    deadline = time.monotonic() + _THREAD_SECONDS
    while threads := processes.other_threads():
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    else:
        return
    threading: Any = sys.modules.get("threading")
    python = [] if threading is None else threading.enumerate()
    named = [f"{each.name!a} of Python" for each in python if each is not threading.main_thread()]
    named = named or [f"{thread!a} of C code" for thread in threads]
    raise IsolationError(
        tier,
        "single thread",
        f"preload: {name} left the thread {', '.join(named)}, which sessions would lack",
        f"Leave {name} out of preload: a cell that imports it has its threads",
    )


def _rules(policy: Policy) -> PolicyRules | None:
    # Not loaded without a policy: every session would pay for it.
    from ..policies.rules import prepare

    return prepare(policy)


def data_segment() -> int:
    """Bytes of private writable memory of this process: proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


# Turns a fork of the zygote into a template with shared objects, and a zygote of its own.
#
# It is forked from the template alone, never from a session, so no code of a session ever ran in
# it.


def grow(template: SealedTemplate, fd: int, manifest: tuple[int, int]) -> SealedTemplate:
    """Return `template` with the objects of file `fd`, which is closed, as variables of each
    session.

    Raises:
        SandboxError: as `unpack_objects`.
        IsolationError: a thread is still running.
    """
    if template.tier != "jailed":
        # A fork does not inherit it.
        processes.adopt_orphans(needed=template.tier != "alone")
    given_back = template.data_segment - data_segment()  # and the memory is free again
    objects = unpack_objects(fd, *manifest)
    os.close(fd)
    if processes.other_threads():
        raise IsolationError(template.tier, "single thread", "numpy left a thread")
    template.worker.share(objects)
    immortalise()
    # Objects that are not garbage now never will be, and a collection would copy all of them.
    gc.freeze()
    grown = data_segment() + given_back
    count_memory_from(grown)
    return replace(template, data_segment=grown, nested=True)

"""The sealed template: a read-only view, preloaded modules, frozen garbage, one thread.

No code of a session ever ran in it; sessions are forked from it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from errno import ENOSYS
from typing import TYPE_CHECKING

from ..errors import IsolationError, SandboxError
from ..jail import (
    capabilities,
    folders,
    grants,
    landlock,
    libc,
    memory,
    mounts,
    processes,
    remedies,
    seccomp,
    users,
)
from ..jail.recipe import Jail
from ..types import Policy
from ..worker.main import Worker
from ..worker.streams import open_streams
from ..worker.warmth import warm_up
from .immortal import immortalise
from .rehearsal import rehearse
from .working_set import WorkingSets

if TYPE_CHECKING:
    from ..policies.rules import Rules

# Bytes. What a cell takes and gives back in one block, as a text of a MB and its bytes that are
# written, is had again without a page fault for each 4 KiB; twice that stays with an idle session.
_KEPT_FREE = 2 << 20


@dataclass(frozen=True, slots=True)
class Template:
    """What every session of this template has in common."""

    tier: str
    privileged: bool  # each session has uids of its own
    last_capability: int
    seal: bytes
    files: landlock.Plan
    base: str  # below it each session has its directory; "" where they have mounts
    interpreter: Sequence[str]  # as jail.Jail has it
    covered: Mapping[str, str]  # as mounts.covered has it
    pinned: Sequence[int]  # as landlock.pin has it
    worker: Worker  # made here once, so that a session has nothing left to build
    data_segment: int  # bytes of private writable memory before a session has done anything
    working_sets: WorkingSets | None = None  # once they are known
    nested: bool = False  # forked from another, whose directory `base` is


def build(
    preload: Sequence[str],
    mounted: Mapping[str, str],
    tier: str,
    place: str,
    policy: Policy | None = None,
    *,
    privileged: bool,
) -> Template:
    """Turn this process into a template of sessions of `tier`.

    `mounted`: what is shown besides the interpreter, by paths inside. `place`: where directories
    of sessions may be made. `privileged`: this process is root on the host, not only inside.

    Raises:
        IsolationError: the view could not be built, or a thread was left running.
        SandboxError: a module of `preload`, or what `policy` is built on, cannot be imported in the
            session's view, or `mounted` asks for what the tier cannot do.
    """
    ground = _GROUNDS[tier](mounted, place, privileged)
    try:
        return _seal(ground, preload, policy, tier, privileged=privileged and tier != "process")
    except BaseException:
        if ground.base:
            folders.remove_base(ground.base)
        raise


def _seal(
    ground: _Ground, preload: Sequence[str], policy: Policy | None, tier: str, *, privileged: bool
) -> Template:
    # What is not in the view cannot be imported, and its path is the host's business.
    sys.path[:] = [path for path in sys.path if ground.shows(path)]
    sys.argv[:] = [""]
    with _scratch(tier, ground) if preload else contextlib.nullcontext():
        for name in preload:
            _preload(name)
    if "numpy" in sys.modules:
        # Which numpy puts off until it is asked for; each session asks, to draw its own.
        _preload("numpy.random")
    rules = None if policy is None else _rules(policy)
    if processes.thread_count() != 1:
        raise IsolationError(tier, "single thread", f"a module of {list(preload)} left a thread")
    if ground.base_filter:
        processes.forbid_new_privileges()
        seccomp.load(ground.base_filter)
    warm_up(rules)
    worker = Worker(rules)
    worker.follow_forks()
    rehearse(Jail(None, 0, [], 0, b"", ground.files, tier, states=0), worker)
    gc.collect()
    immortalise()
    gc.freeze()
    # What it grew to: a session's memory counts from there on, and grows again where it shrinks.
    grown = data_segment()
    memory.keep_freed(_KEPT_FREE)
    memory.trim_heap()  # each fork copies an entry for each page
    memory.empty_end(_KEPT_FREE)  # after `keep_freed`: so much comes from the heap by now
    grown = max(grown, data_segment())
    # A collection would write to, and so copy, what init and the zygote only read.
    gc.disable()
    return Template(
        tier,
        privileged,
        capabilities.last_capability(),
        ground.seal,
        ground.files,
        ground.base,
        ground.interpreter,
        ground.covered,
        ground.pinned,
        worker,
        grown,
    )


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a tier's sessions stand on, made before anything is imported."""

    files: landlock.Plan
    base_filter: bytes = b""
    seal: bytes = b""
    base: str = ""
    interpreter: Sequence[str] = ()
    covered: Mapping[str, str] = field(default_factory=dict)
    pinned: Sequence[int] = ()
    readable: Sequence[str] = ("/",)

    def shows(self, path: str) -> bool:
        """Whether a session can import from `path`."""
        roots = tuple(f"{root.rstrip('/')}/" for root in self.readable)
        return os.path.exists(path) and f"{path}/".startswith(roots)


def _prepare_jailed(mounted: Mapping[str, str], place: str, privileged: bool) -> _Ground:
    arch = seccomp.native_arch()
    libc.number("seccomp")
    open_streams()
    shown = {**_interpreter_paths(), **mounted}
    _enter_view(privileged, shown)
    files = landlock.plan(grants.JAILED, _landlock_abi("jailed"), grants.TRIAL)
    return _Ground(
        files,
        seccomp.base_program(arch),
        seccomp.seal_program(arch),
        covered=mounts.covered(shown),
    )


def _prepare_confined(mounted: Mapping[str, str], place: str, privileged: bool) -> _Ground:
    arch = seccomp.native_arch()
    libc.number("seccomp")
    abi = _landlock_abi("confined")
    if not abi:
        raise remedies.failed("Landlock", OSError(ENOSYS, "the kernel has none"), "confined")
    open_streams()
    base = _make_base("confined", mounted, place)
    interpreter = list(_interpreter_paths())
    shown = [
        *grants.CONFINED,
        *(landlock.Grant(path, grants.RUN, "the interpreter") for path in interpreter),
        *(landlock.Grant(path, grants.RUN, "shown by the operator") for path in mounted),
    ]
    try:
        files = landlock.plan(shown, abi, _trial(base))
        pinned = landlock.pin(files)
    except OSError as error:
        folders.remove_base(base)
        raise remedies.failed("Landlock", error, "confined") from error
    processes.adopt_orphans()
    processes.hide_memory()
    return _Ground(
        files,
        seccomp.base_program(arch, "confined"),
        seccomp.seal_program(arch, "confined"),
        base,
        interpreter,
        pinned=pinned,
        readable=[path for path, _ in files.rules],
    )


def _prepare_process(mounted: Mapping[str, str], place: str, privileged: bool) -> _Ground:
    open_streams()
    base = _make_base("process", mounted, place)
    processes.adopt_orphans()
    return _Ground(landlock.plan((), 0), base=base)


_GROUNDS: Mapping[str, Callable[[Mapping[str, str], str, bool], _Ground]] = {
    "jailed": _prepare_jailed,
    "confined": _prepare_confined,
    "process": _prepare_process,
}


def _landlock_abi(tier: str) -> int:
    try:
        return landlock.kernel_abi()
    except OSError as error:
        raise remedies.failed("Landlock", error, tier) from error


def _make_base(tier: str, mounted: Mapping[str, str], place: str) -> str:
    """The directory of the sessions' directories; in it, one of the template's own."""
    for inside, outside in mounted.items():
        if inside != outside:
            raise SandboxError(
                f"mounts: tier {tier} has no view of its own, so {outside!r} cannot be shown at "
                f"{inside!r}; show it where it is, or use tier jailed"
            )
    try:
        base = folders.make_base(place)
        os.mkdir(f"{base}/template")
        os.chmod(f"{base}/template", 0o755)
    except OSError as error:
        raise remedies.failed("folder", error, tier) from error
    os.environ["HOME"] = os.environ["TMPDIR"] = f"{base}/template"
    os.environ["MPLCONFIGDIR"] = f"{base}/template/matplotlib"
    return base


def _trial(base: str) -> str:
    """A file that anybody may write by its permissions, and no rule names."""
    path = f"{base}/template/trial"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    os.fchmod(fd, 0o666)
    os.close(fd)
    return path


def _enter_view(privileged: bool, shown: Mapping[str, str]) -> None:
    try:
        if not privileged:
            # An ordinary user may mount only with the capabilities of a user namespace of its own.
            # Nobody is uid 0 there: that would own what the kernel shows of sessions' networks, and
            # be the same user as their code.
            users.enter_namespace(users.CODE_ID)
        libc.unshare(libc.CLONE_NEWNS)
    except OSError as error:
        raise remedies.failed("namespaces", error) from error
    try:
        mounts.stage(shown)
    except OSError as error:
        raise remedies.failed("root", error) from error


def _interpreter_paths() -> dict[str, str]:
    """The directories that hold the interpreter, its libraries and this package.

    By the names that they are known by, with where these lead. A name may have a link in it, which
    leads nowhere in a view of its own, and libraries are found by either: so both are there.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    named = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, package}
    wanted = named | {os.path.realpath(path) for path in named}
    covered = ("/usr/",)
    return {
        path: os.path.realpath(path)
        for path in sorted(wanted)
        if not f"{path}/".startswith(covered)
        and not any(path.startswith(f"{other}/") for other in wanted)
    }


def _scratch(tier: str, ground: _Ground) -> AbstractContextManager[None]:
    """Somewhere to write for modules that do so as they are imported, as matplotlib does."""
    # The other tiers have a directory of the template's own.
    return mounts.writable(ground.covered) if tier == "jailed" else contextlib.nullcontext()


def _preload(name: str) -> None:
    try:
        importlib.import_module(name)
    # Boundary: importing runs any code, and what it raises must reach the host as ours.
    except Exception as error:
        raise SandboxError(f"preload: {name}: {type(error).__name__}: {error}") from error


def _rules(policy: Policy) -> Rules | None:
    # Not loaded where there is no policy, for what a template has every session pays for.
    from ..policies.rules import prepare

    return prepare(policy)


def data_segment() -> int:
    """Bytes of private writable memory of this process: proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")

"""`SealedTemplate`: a read-only view, preloaded modules, a frozen heap, one thread.

No code of a session ever ran in it; sessions are forked from it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import IsolationError, SandboxError
from ...jail import capabilities, mounts, processes, reserved_descriptors, session_directory
from ...jail.landlock import ruleset
from ...jail.seccomp import seccomp_filters
from ...jail.session_jail import Jail
from ...language_policy import Policy
from ...native import heap_memory, library, spawn
from ...worker.cell.cell_warnings import attribute_to_cells
from ...worker.display.error_hints import count_memory_from
from ...worker.display.tracebacks import hide_files_of_library
from ...worker.main import Worker
from ...worker.namespace.class_sources import install_lookup
from ...worker.namespace.multiprocessing_start import start_by_fork
from ...worker.namespace.pristine_library import keep_library
from ...worker.namespace.trusted_imports import note_library
from ...worker.namespace.workspace_modules import MODULES
from ..warmup.heap_compaction import compact_heap
from ..warmup.immortal_objects import immortalise
from ..warmup.init_warmup import warm_up_init
from ..warmup.worker_warmup import warm_up_worker
from .template_base import TemplateBase, prepare_base

if TYPE_CHECKING:
    from ...policies.rules import PolicyRules

# Bytes. A block that a cell allocates and frees, such as a str of 1 MB and its encoded bytes, is
# reused without a page fault for each 4 KiB; twice that stays with an idle session.
_KEPT_FREE = 2 << 20


@dataclass(frozen=True, slots=True)
class SealedTemplate:
    """The common state of the sessions of this template."""

    tier: str
    privileged: bool  # each session has uids of its own
    last_capability: int
    final_filter: bytes
    files: ruleset.Plan
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
    if processes.thread_count() != 1:
        raise IsolationError(tier, "single thread", f"a module of {list(preload)} left a thread")
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
        capabilities.last_capability(),
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
    start_by_fork()
    with _scratch(tier, base) if preload else contextlib.nullcontext():
        for name in preload:
            _preload(name)
    if "numpy" in sys.modules:
        # numpy imports it lazily; each session needs it to seed its generator.
        _preload("numpy.random")


def _load_filter(base: TemplateBase) -> None:
    spawn.thread_id_at()  # for all forks: the filter refuses this query
    if base.base_filter:
        processes.forbid_new_privileges()
        seccomp_filters.load(base.base_filter)


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
    heap_memory.keep_freed(_KEPT_FREE)
    heap_memory.trim_heap()  # each fork copies an entry for each page
    heap_memory.empty_end(_KEPT_FREE)  # after `keep_freed`, from when on the heap keeps so much
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


def _rules(policy: Policy) -> PolicyRules | None:
    # Not loaded without a policy: every session would pay for it.
    from ...policies.rules import prepare

    return prepare(policy)


def data_segment() -> int:
    """Bytes of private writable memory of this process: proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")

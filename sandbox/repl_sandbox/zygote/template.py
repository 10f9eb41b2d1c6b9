"""The sealed template: a read-only view, preloaded modules, frozen garbage, one thread.

No code of a session ever ran in it; sessions are forked from it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import IsolationError, SandboxError
from ..jail import capabilities, grants, landlock, libc, mounts, processes, remedies, seccomp, users
from ..worker.main import Worker
from ..worker.streams import open_streams
from ..worker.warmth import warm_up


@dataclass(frozen=True, slots=True)
class Template:
    """What every session of this template has in common."""

    privileged: bool  # each session has uids of its own
    last_capability: int
    seal: bytes
    files: landlock.Plan
    covered: Mapping[str, str]  # as mounts.covered has it
    worker: Worker  # made here once, so that a session has nothing left to build
    data_segment: int  # bytes of private writable memory before a session has done anything


def build(preload: Sequence[str], extra_mounts: Mapping[str, str], *, privileged: bool) -> Template:
    """Turn this process into a template. `privileged`: it is root on the host, not only inside.

    Raises:
        IsolationError: the view could not be built, or a thread was left running.
        SandboxError: a module of `preload` cannot be imported in the session's view.
    """
    arch = seccomp.native_arch()
    seal = seccomp.seal_program(arch)
    last = capabilities.last_capability()
    libc.number("seccomp")
    open_streams()
    _enter_view(privileged, extra_mounts)
    abi = _landlock_abi()
    # What is not in the view cannot be imported, and its path is the host's business.
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    sys.argv[:] = [""]
    for name in preload:
        _preload(name)
    if processes.thread_count() != 1:
        raise IsolationError(
            "jailed", "single thread", f"a module of {list(preload)} left a thread"
        )
    processes.forbid_new_privileges()
    seccomp.load(seccomp.base_program(arch))
    warm_up()
    worker = Worker()
    gc.collect()
    gc.freeze()
    # A collection would write to, and so copy, what init and the zygote only read.
    gc.disable()
    covered = mounts.covered({*_interpreter_paths(), *extra_mounts})
    files = landlock.plan(grants.JAILED, abi, grants.TRIAL)
    return Template(privileged, last, seal, files, covered, worker, _data_segment())


def _landlock_abi() -> int:
    try:
        return landlock.kernel_abi()
    except OSError as error:
        raise remedies.failed("Landlock", error) from error


def _enter_view(privileged: bool, extra_mounts: Mapping[str, str]) -> None:
    try:
        if not privileged:
            # An ordinary user may mount only as root of a user namespace.
            users.enter_namespace(0)
        libc.unshare(libc.CLONE_NEWNS)
    except OSError as error:
        raise remedies.failed("namespaces", error) from error
    try:
        mounts.stage(_interpreter_paths(), extra_mounts)
    except OSError as error:
        raise remedies.failed("root", error) from error


def _interpreter_paths() -> list[str]:
    """The directories that hold the interpreter, its libraries and this package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, package}
    covered = ("/usr/",)
    return sorted(
        path
        for path in wanted
        if not f"{path}/".startswith(covered)
        and not any(path.startswith(f"{other}/") for other in wanted)
    )


def _preload(name: str) -> None:
    try:
        importlib.import_module(name)
    # Boundary: importing runs any code, and what it raises must reach the host as ours.
    except Exception as error:
        raise SandboxError(f"preload: {name}: {type(error).__name__}: {error}") from error


def _data_segment() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")

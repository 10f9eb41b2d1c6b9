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
from typing import TYPE_CHECKING

from ..errors import IsolationError, SandboxError
from ..jail import capabilities, libc, mounts, processes, remedies, seccomp, users
from ..types import Policy
from ..worker.main import Worker
from ..worker.streams import open_streams
from ..worker.warmth import warm_up

if TYPE_CHECKING:
    from ..policies.rules import Rules


@dataclass(frozen=True, slots=True)
class Template:
    """What every session of this template has in common."""

    privileged: bool  # each session has uids of its own
    last_capability: int
    seal: bytes
    covered: Mapping[str, str]  # as mounts.covered has it
    worker: Worker  # made here once, so that a session has nothing left to build
    data_segment: int  # bytes of private writable memory before a session has done anything


def build(
    preload: Sequence[str],
    extra_mounts: Mapping[str, str],
    policy: Policy | None = None,
    *,
    privileged: bool,
) -> Template:
    """Turn this process into a template. `privileged`: it is root on the host, not only inside.

    Raises:
        IsolationError: the view could not be built, or a thread was left running.
        SandboxError: a module of `preload`, or what `policy` is built on, cannot be imported in the
            session's view.
    """
    arch = seccomp.native_arch()
    seal = seccomp.seal_program(arch)
    last = capabilities.last_capability()
    libc.number("seccomp")
    open_streams()
    _enter_view(privileged, extra_mounts)
    # What is not in the view cannot be imported, and its path is the host's business.
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    sys.argv[:] = [""]
    for name in preload:
        _preload(name)
    rules = None if policy is None else _rules(policy)
    if processes.thread_count() != 1:
        raise IsolationError(
            "jailed", "single thread", f"a module of {list(preload)} left a thread"
        )
    processes.forbid_new_privileges()
    seccomp.load(seccomp.base_program(arch))
    warm_up(rules)
    worker = Worker(rules)
    gc.collect()
    gc.freeze()
    # A collection would write to, and so copy, what init and the zygote only read.
    gc.disable()
    covered = mounts.covered({*_interpreter_paths(), *extra_mounts})
    return Template(privileged, last, seal, covered, worker, _data_segment())


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


def _rules(policy: Policy) -> Rules | None:
    # Not loaded where there is no policy, for what a template has every session pays for.
    from ..policies.rules import prepare

    return prepare(policy)


def _data_segment() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")

"""`TemplateBase`: the view, the Landlock rules, the filters and the directory of a tier's
sessions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOSYS

from ...errors import SandboxError
from ...jail import mounts, processes, remedies, session_directory, users
from ...jail.landlock import landlock_rules, ruleset
from ...jail.seccomp import seccomp_filters
from ...native import libc
from ...worker.cell.standard_streams import open_streams
from . import interpreter_paths


@dataclass(frozen=True, slots=True)
class TemplateBase:
    """The base of a tier's sessions, made before anything is imported."""

    files: ruleset.Plan
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
    """Make the base of sessions of `tier`; the arguments are those of `sealed_template.build`.

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
    arch = seccomp_filters.native_arch()
    libc.number("seccomp")
    open_streams()
    base = _make_base("alone", mounted, place)
    processes.adopt_orphans(needed=False)  # else the container's first process does
    processes.hide_memory()
    return TemplateBase(
        ruleset.plan((), 0),
        seccomp_filters.base_program(arch, "confined"),
        seccomp_filters.final_program(arch, "confined"),
        base,
        list(interpreter_paths.directories()),
    )


def _prepare_jailed(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    arch = seccomp_filters.native_arch()
    libc.number("seccomp")
    open_streams()
    shown = {**interpreter_paths.directories(), **mounted}
    _enter_view(privileged, shown, interpreter_paths.links(sys.executable))
    files = ruleset.plan(landlock_rules.JAILED, _landlock_abi("jailed"), landlock_rules.TRIAL)
    return TemplateBase(
        files,
        seccomp_filters.base_program(arch),
        seccomp_filters.final_program(arch),
        covered=mounts.covered(shown),
    )


def _prepare_confined(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    arch = seccomp_filters.native_arch()
    libc.number("seccomp")
    abi = _landlock_abi("confined")
    if not abi:
        raise remedies.step_error("Landlock", OSError(ENOSYS, "the kernel has none"), "confined")
    open_streams()
    base = _make_base("confined", mounted, place)
    interpreter = list(interpreter_paths.directories())
    shown = [
        *landlock_rules.CONFINED,
        *(ruleset.Grant(path, landlock_rules.RUN, "the interpreter") for path in interpreter),
        *(ruleset.Grant(path, landlock_rules.RUN, "shown by the operator") for path in mounted),
    ]
    try:
        files = ruleset.plan(shown, abi, _trial(base))
        pinned = ruleset.pin(files)
    except OSError as error:
        session_directory.remove_base(base)
        raise remedies.step_error("Landlock", error, "confined") from error
    processes.adopt_orphans()
    processes.hide_memory()
    return TemplateBase(
        files,
        seccomp_filters.base_program(arch, "confined"),
        seccomp_filters.final_program(arch, "confined"),
        base,
        interpreter,
        pinned=pinned,
        readable=[path for path, _ in files.rules],
    )


def _prepare_process(mounted: Mapping[str, str], place: str, privileged: bool) -> TemplateBase:
    open_streams()
    base = _make_base("process", mounted, place)
    processes.adopt_orphans()
    return TemplateBase(ruleset.plan((), 0), base=base)


_BASES: Mapping[str, Callable[[Mapping[str, str], str, bool], TemplateBase]] = {
    "jailed": _prepare_jailed,
    "confined": _prepare_confined,
    "alone": _prepare_alone,
    "process": _prepare_process,
}


def _landlock_abi(tier: str) -> int:
    """The version of the kernel's Landlock, 0 if it has none."""
    try:
        return ruleset.kernel_abi()
    except OSError as error:
        raise remedies.step_error("Landlock", error, tier) from error


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
        raise remedies.step_error("folder", error, tier) from error
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
        raise remedies.step_error("namespaces", error) from error
    try:
        mounts.stage(shown, links)
    except OSError as error:
        raise remedies.step_error("root", error) from error

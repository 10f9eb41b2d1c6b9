"""`SandboxSettings`: the checked arguments of a `Sandbox`, and the choice of its tier."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from .errors import CheckpointError, IsolationError, SandboxError
from .host.container import (
    ContainerLimits,
    ContainerSettings,
    Inside,
    check_container,
    check_room,
    has_own_kernel,
)
from .host.isolation import TIERS, lacks
from .jail.mounts import PRIVATE
from .jail.steps import known
from .policies import modules
from .types import Isolation, Limits, Policy

if TYPE_CHECKING:
    from .host.zygote import ZygoteLauncher
    from .protocol.checkpoints import Checkpoint


# Launchers of template processes outside of this process: in a container.


def container_launcher(settings: ContainerSettings) -> ZygoteLauncher:
    """Return the launcher of a template in a container.

    Raises:
        IsolationError: no daemon answers, or the Python package `docker` is missing.
    """
    try:
        from .host.docker import ContainerLauncher
    except ModuleNotFoundError as error:
        raise _without(error) from error
    return ContainerLauncher(settings)


def clean() -> list[str]:
    """Remove containers whose host process has ended; return their names.

    Raises:
        SandboxError: no daemon answers, the daemon refuses, or the Python package `docker` is
            missing.
    """
    try:
        from .host.docker import remove
    except ModuleNotFoundError as error:
        raise _without(error) from error
    return remove()


def _without(error: ModuleNotFoundError) -> IsolationError:
    if error.name is None or error.name.startswith(__name__.partition(".")[0]):
        raise error
    return IsolationError(
        "container",
        "docker",
        f"the Python package {error.name} is not installed",
        "pip install 'repl-env[docker]'",
    )


# The choice of a sandbox's tier: what the caller accepts and this system supports.

_T = TypeVar("_T")

STRONGEST_FIRST = tuple(TIERS)


def named_tier(isolation: str, require: str | None) -> tuple[str, ...]:
    """Return the acceptable tiers, the strongest first, whatever this system supports.

    Raises:
        ValueError: a name is unknown, or the two exclude each other.
    """
    if isolation not in ("auto", *STRONGEST_FIRST):
        names = ", ".join(("auto", *STRONGEST_FIRST))
        raise ValueError(f"isolation must be one of {names}, not {isolation!r}")
    if require == "container" and isolation == "auto":
        raise ValueError("require='container' needs isolation='container', with an image")
    if require not in (None, *STRONGEST_FIRST):
        names = ", ".join(STRONGEST_FIRST)
        raise ValueError(f"require must be None or one of {names}, not {require!r}")
    if require is None:
        require = "confined" if isolation == "auto" else isolation
    enough = STRONGEST_FIRST[: STRONGEST_FIRST.index(require) + 1]
    if isolation != "auto" and isolation not in enough:
        raise ValueError(f"require={require!r} excludes isolation={isolation!r}, which is weaker")
    if isolation != "auto":
        return (isolation,)
    # Only by name: the operator has to choose an image.
    return tuple(tier for tier in enough if tier != "container")


def acceptable(isolation: str, require: str | None) -> tuple[str, ...]:
    """Return the tiers to try, the strongest first.

    Raises:
        ValueError: as `named`.
        IsolationError: the engine does not run on this system.
    """
    tiers = named_tier(isolation, require)
    if sys.platform != "linux":
        raise IsolationError(
            tiers[-1],
            "platform",
            f"{sys.platform} has no namespaces, seccomp or Landlock, which sessions need",
            "Use Linux, or a remote server",
        )
    return tiers


def strongest(
    tiers: Sequence[str], start: Callable[[str], _T]
) -> tuple[_T, tuple[IsolationError, ...]]:
    """Return the result of `start` for the first of `tiers` that works, and the errors of those
    before.

    Raises:
        IsolationError: none works. It is that of the last, and has the others as notes.
        SandboxError: `start` failed otherwise, and no weaker one is tried; notes as above.
    """
    refusals: list[IsolationError] = []
    for tier in tiers:
        try:
            return start(tier), tuple(refusals)
        except IsolationError as error:
            refusals.append(error)
        except SandboxError as error:
            _note(error, refusals)
            raise
    *stronger, last = refusals
    _note(last, stronger)
    raise last


def _note(error: SandboxError, refusals: Sequence[IsolationError]) -> None:
    for refusal in refusals:
        error.add_note(f"and before that: {refusal}")


def confirm(tier: str, measured: Isolation) -> None:
    """Raise IsolationError unless a session of `tier` was seen to have all that the tier needs."""
    lacking = lacks(tier, [layer.name for layer in measured.layers if layer.active])
    missing = [layer for layer in measured.layers if layer.name in lacking]
    if missing:
        found = "; ".join(f"{each.name}: {each.detail}" for each in missing)
        raise IsolationError(
            tier,
            "probe",
            f"a test session started, but these layers were not found: {found}",
            known("probe"),
        )


# Checks of the arguments of `Sandbox`, before anything starts: an error names the argument.

Tier: TypeAlias = Literal["jailed", "container", "confined", "process"]
Grouping: TypeAlias = Literal["auto", "require", "off"]
RecoveryMode: TypeAlias = Literal["snapshot", "restart"]


class SandboxArguments(TypedDict, total=False):
    """The arguments of `Sandbox`, for functions that pass them on."""

    python: str | None
    preload: Sequence[str]
    mounts: Mapping[str, str] | None
    limits: Limits | None
    policy: Policy | None
    isolation: Tier | Literal["auto"]
    require: Tier | None
    ready: int
    max_sessions: int | None
    cgroup: Grouping
    recovery: RecoveryMode
    history: int
    branches: int
    hash_seed: int | None
    fair_share: bool
    image: str | None
    runtime: str | None
    container_limits: ContainerLimits | None
    per_session: bool | None
    inside: Inside


_GROUPINGS = ("auto", "require", "off")
# Each snapshot is a process; the page that lists them holds 169.
_MAX_HISTORY = 128
# Paths that each session has for itself; a mount there would be hidden, or replace a device.
_OWN_PLACES = ("/proc", "/dev", *PRIVATE)


def check_limits(limits: Limits | None) -> Limits | None:
    if limits is not None and not isinstance(limits, Limits):
        message = "limits must be a Limits (from repl_sandbox import Limits)"
        raise TypeError(f"{message}, not {type(limits).__name__}")
    return limits


def check_policy(policy: Policy | None) -> Policy | None:
    """Return `policy`, or None if it forbids nothing."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        message = "policy must be a Policy (from repl_sandbox import Policy)"
        raise TypeError(f"{message}, not {type(policy).__name__}")
    if policy.language == "restricted":
        modules.check(policy.imports)
    return None if policy.language == "full" else policy


def check_hash_seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"hash_seed must be an int, not {type(seed).__name__}")
    if not 0 <= seed < 1 << 32:
        raise ValueError("hash_seed must be from 0 to 4,294,967,295")  # PYTHONHASHSEED
    return seed


def check_grouping(cgroup: str, tiers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tiers in which sessions have the cgroup that `cgroup` requires."""
    if cgroup not in _GROUPINGS:
        raise ValueError(f"cgroup must be one of {', '.join(_GROUPINGS)}, not {cgroup!r}")
    if cgroup != "require":
        return tiers
    if "jailed" not in tiers:
        raise ValueError(
            f"cgroup='require' excludes tier {tiers[0]!r}: only jailed sessions have one"
        )
    return ("jailed",)


def check_snapshots(recovery: str, history: int) -> int:
    """Return the number of snapshots kept besides the current one; -1: not even that."""
    if recovery not in ("snapshot", "restart"):
        raise ValueError(f"recovery must be 'snapshot' or 'restart', not {recovery!r}")
    if isinstance(history, bool) or not isinstance(history, int):
        raise TypeError(f"history must be an int, not {type(history).__name__}")
    if not 0 <= history <= _MAX_HISTORY:
        raise ValueError(f"history must be from 0 to {_MAX_HISTORY}, not {history}")
    return history if recovery == "snapshot" else -1


def check_counts(python: str | None, ready: int, max_sessions: int | None, branches: int) -> None:
    if python is not None and not isinstance(python, str):
        raise TypeError(f"python must be a path as a str, not {type(python).__name__}")
    for name, count, least in (
        ("ready", ready, 0),
        ("max_sessions", max_sessions, 1),
        ("branches", branches, 0),
    ):
        if count is None and name == "max_sessions":
            continue
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"{name} must be an int, not {type(count).__name__}")
        if count < least:
            raise ValueError(f"{name} must be at least {least}, not {count}")


def check_preload(preload: Sequence[str]) -> list[str]:
    if not isinstance(preload, (list, tuple, set, frozenset)):
        raise TypeError(f"preload must be a list of module names, not {type(preload).__name__}")
    for name in preload:
        if not isinstance(name, str):
            raise TypeError(f"preload: {name!r} must be a str, not {type(name).__name__}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload: {name!r} is not the name of a module")
    return list(preload)


def check_mounts(mounts: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(mounts, Mapping):
        raise TypeError("mounts must be a mapping {path inside: path of the host}")
    checked = {}
    for inside, baseline in mounts.items():
        for path in (inside, baseline):
            if not isinstance(path, (str, os.PathLike)):
                raise TypeError(f"mounts: {path!r} is not a path")
            if "\0" in os.fspath(path):
                raise ValueError(f"mounts: {path!r} must not hold a null character")
        inside, baseline = os.fspath(inside), os.path.realpath(baseline)
        if not os.path.isabs(inside) or os.path.normpath(inside) != inside or inside == "/":
            raise ValueError(
                f"mounts: {inside!r} must be an absolute, plain path inside the session"
            )
        _check_place(inside)
        _check_mounted(baseline)
        checked[inside] = baseline
    for inside in checked:
        _check_above(inside, {"/usr": "/usr", **checked})
    return checked


def _check_place(inside: str) -> None:
    """Raise ValueError for a path that sessions have for themselves; paths below the private ones
    are free.
    """
    below = inside.startswith(("/proc/", "/dev/")) and not inside.startswith("/dev/shm/")
    if inside in _OWN_PLACES or below:
        raise ValueError(
            f"mounts: {inside!r} is private to each session; choose another path inside"
        )


def _check_above(inside: str, mounts: Mapping[str, str]) -> None:
    """Raise ValueError if `inside` lies in another, read-only mount that has no entry of its
    name.
    """
    for above in (str(path) for path in PurePosixPath(inside).parents if str(path) in mounts):
        if not os.path.exists(mounts[above] + inside.removeprefix(above)):
            raise ValueError(
                f"mounts: {inside!r} lies in {above!r}, and {mounts[above]!r} has nothing of that "
                "name to mount it on"
            )
        return


def _check_mounted(path: str) -> None:
    """Raise ValueError unless `path` is a file or a directory: read-only means nothing for
    others.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        raise ValueError(f"mounts: {path!r} does not exist on this system") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"mounts: {path!r} is neither a file nor a directory")


# `SandboxSettings`: the checked arguments of one `Sandbox`, which its forks with objects share.


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """`tiers`: those to try, the strongest first. `snapshots`: as of `ResourceBudget`.

    `container`: None for sessions outside of a container. The other fields are arguments of
    `Sandbox`; `policy` is None if it forbids nothing.
    """

    tiers: Sequence[str]
    python: str | None
    preload: Sequence[str]
    mounts: Mapping[str, str]
    limits: Limits
    policy: Policy | None
    ready: int
    max_sessions: int | None
    cgroup: Grouping
    snapshots: int
    branches: int
    hash_seed: int | None
    fair_share: bool
    container: ContainerSettings | None

    @classmethod
    def of(cls, **arguments: Unpack[SandboxArguments]) -> SandboxSettings:
        """Check all arguments of `Sandbox`.

        Raises:
            TypeError, ValueError: naming the argument.
            IsolationError: the engine does not run on this system.
        """
        limits = check_limits(arguments["limits"]) or Limits()
        snapshots = check_snapshots(arguments["recovery"], arguments["history"])
        policy = check_policy(arguments["policy"])
        tiers = acceptable(arguments["isolation"], arguments["require"])
        tiers = check_grouping(arguments["cgroup"], tiers)
        mounts = check_mounts(arguments["mounts"] or {})
        container = _container(arguments, limits, mounts)
        python, ready = arguments["python"], arguments["ready"]
        max_sessions, branches = arguments["max_sessions"], arguments["branches"]
        check_counts(python, ready, max_sessions, branches)
        return cls(
            tiers=tiers,
            python=python,
            preload=check_preload(arguments["preload"]),
            mounts=mounts,
            limits=limits,
            policy=policy,
            ready=ready,
            max_sessions=max_sessions,
            cgroup=arguments["cgroup"],
            snapshots=snapshots,
            branches=branches,
            hash_seed=check_hash_seed(arguments["hash_seed"]),
            fair_share=arguments["fair_share"],
            container=container,
        )

    @property
    def preloads(self) -> bool:
        """True if the template imports modules, whose state all sessions inherit."""
        # A policy preloads modules as well, among them `random`.
        return bool(self.preload) or self.policy is not None

    @property
    def knows_arrays(self) -> bool:
        """True if sessions can use numpy: the restricted policy does not permit it."""
        return self.policy is None or self.policy.language != "restricted"

    @property
    def per_session(self) -> bool:
        """True if each session has a container of its own."""
        return self.container is not None and self.container.per_session

    @property
    def template_mounts(self) -> Mapping[str, str]:
        """The mounts as the template sees them: a container has them at their places already."""
        return self.mounts if self.container is None else {inside: inside for inside in self.mounts}

    @property
    def launch(self) -> Callable[[], ZygoteLauncher] | None:
        """The function that makes the launcher of a template; None for one on this system."""
        if self.container is None:
            return None
        return partial(container_launcher, self.container)

    def check_limits(self, limits: Limits | None) -> Limits:
        """Return the limits of a session, which default to the sandbox's.

        Raises:
            TypeError, ValueError: they are none, or exceed those of the session's container.
        """
        limits = check_limits(limits) or self.limits
        _check_container_limits(limits, self.container)
        return limits

    def check_checkpoint(self, saved: Checkpoint, interpreter: tuple[str, str]) -> None:
        """Raise CheckpointError unless a session can load `saved`.

        `interpreter`: version and implementation.
        """
        if self.policy is not None:
            raise CheckpointError(
                f"policy: language={self.policy.language!r} cannot check code in a checkpoint; "
                "restore the checkpoint in a sandbox without a policy"
            )
        required = saved.manifest.implementation, saved.manifest.python.split(".")[:2]
        version, implementation = interpreter
        if required != (implementation, version.split(".")[:2]):
            raise CheckpointError(
                f"the checkpoint is of {saved.manifest.implementation:.40} "
                f"{saved.manifest.python:.40}, and the sandbox runs {implementation} {version}: "
                "restore the checkpoint in a sandbox with the same minor version of Python"
            )


def _container(
    arguments: SandboxArguments, limits: Limits, mounts: Mapping[str, str]
) -> ContainerSettings | None:
    image, runtime = arguments["image"], arguments["runtime"]
    container_limits, inside = arguments["container_limits"], arguments["inside"]
    per_session = arguments["per_session"]
    check_container(
        *(arguments["isolation"], image, runtime, container_limits),
        per_session=per_session,
        inside=inside,
        fair_share=arguments["fair_share"],
    )
    if image is None:
        return None
    if per_session is None:
        per_session = has_own_kernel(runtime)
    container = ContainerSettings(
        image, runtime, container_limits, arguments["python"], mounts, per_session, inside
    )
    _check_container_limits(limits, container)
    return container


def _check_container_limits(limits: Limits, container: ContainerSettings | None) -> None:
    if container is not None and container.limits is not None:
        check_room(limits, container.limits)

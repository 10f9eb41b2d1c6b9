"""Checks of the arguments of `Sandbox`, before anything starts: an error names the argument."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, TypeAlias, TypedDict

from ..jail.mounts import PRIVATE
from ..language_policy import Policy
from ..policies import modules
from ..session_limits import Limits
from .container_settings import ContainerLimits, Inside

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

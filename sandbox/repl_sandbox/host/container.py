"""`ContainerSettings`: the image, the runtime and the limits of a template's container."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..display import set_module
from ..types import Limits, parse_size

# The tier of the sessions inside their container.
Inside: TypeAlias = Literal["confined", "jailed"]

# A session with the default limits may have 64 processes; PID_MAX_LIMIT bounds all.
_PROCESSES = 8192
_MAX_PROCESSES = 1 << 22
# The least for an interpreter, its template and one session.
_MIN_MEMORY = 64 << 20
_MIN_PROCESSES = 16
# Beginnings of the names of runtimes whose containers have a kernel of their own, as
# io.containerd.kata.v2. Descriptors cannot be passed into such a container, and its processes are
# not in this system's /proc: the host reaches the template by a stream. "stream" is for runtimes
# with other names.
OWN_KERNEL = ("runsc", "gvisor", "kata", "krun", "firecracker", "stream")


@set_module("repl_sandbox")
@dataclass(frozen=True)
class ContainerLimits:
    """The limits of a container of tier "container", with all its sessions.

    `memory`: bytes or text such as "4GiB", of the template, its sessions and their files together;
    None: three quarters of the machine's. `processes`: of all sessions. `cpus`: processors, as 1.5;
    None: all of the machine's.

    Raises:
        TypeError, ValueError: naming the field.
    """

    memory: int | str | None = None
    processes: int = _PROCESSES
    cpus: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            object.__setattr__(self, "memory", parse_size(self.memory, "memory"))
            if int(self.memory) < _MIN_MEMORY:
                raise ValueError(f"memory must be at least {_MIN_MEMORY >> 20} MiB")
        if isinstance(self.processes, bool) or not isinstance(self.processes, int):
            raise TypeError(f"processes must be an int, not {type(self.processes).__name__}")
        if not _MIN_PROCESSES <= self.processes <= _MAX_PROCESSES:
            raise ValueError(f"processes must be from {_MIN_PROCESSES} to {_MAX_PROCESSES:,}")
        if self.cpus is None:
            return
        if isinstance(self.cpus, bool) or not isinstance(self.cpus, (int, float)):
            raise TypeError(f"cpus must be a number, not {type(self.cpus).__name__}")
        if not (math.isfinite(self.cpus) and self.cpus >= 0.01):
            raise ValueError("cpus must be a finite number of at least 0.01")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The container of one template. `mounts`: {path inside: path of the host}, read-only.

    `per_session`: the template has one session. `inside`: the tier of the sessions inside.
    """

    image: str
    runtime: str | None
    limits: ContainerLimits | None
    python: str | None
    mounts: Mapping[str, str]
    per_session: bool
    inside: Inside


def check_container(
    isolation: str,
    image: str | None,
    runtime: str | None = None,
    limits: ContainerLimits | None = None,
    *,
    per_session: bool | None = None,
    inside: str = "confined",
    fair_share: bool = False,
) -> None:
    """Check the arguments for a container: that they belong to one, and are valid.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    for name, value in (("image", image), ("runtime", runtime)):
        if value is None:
            continue
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if not value.strip() or not value.isprintable() or value.startswith("-"):
            raise ValueError(f"{name}={value!r} is not a valid name")
    if limits is not None and not isinstance(limits, ContainerLimits):
        raise TypeError(
            "container_limits must be a ContainerLimits (from repl_sandbox import ContainerLimits),"
            f" not {type(limits).__name__}"
        )
    _check_how(runtime, per_session, inside, fair_share=fair_share)
    if isolation != "container":
        settings: dict[str, object] = {
            "image": image,
            "runtime": runtime,
            "container_limits": limits,
        }
        settings |= {"per_session": per_session}
        settings |= {"inside": inside if inside != "confined" else None}
        for name in (name for name, value in settings.items() if value is not None):
            raise ValueError(f"{name} is for isolation='container' alone, not for {isolation!r}")
    elif image is None:
        raise ValueError(
            "image must be given for isolation='container': the name of an image with CPython 3.11 "
            "or later, as 'python:3.12-slim'"
        )


def _check_how(runtime: str | None, per_session: object, inside: str, *, fair_share: bool) -> None:
    """Check the combination of arguments."""
    if per_session is not None and not isinstance(per_session, bool):
        raise TypeError(f"per_session must be a bool or None, not {type(per_session).__name__}")
    if inside not in ("confined", "jailed"):
        raise ValueError(f"inside must be 'confined' or 'jailed', not {inside!r}")
    if inside == "jailed" and per_session:
        raise ValueError("inside='jailed' separates sessions, so it needs per_session=False")
    for name, requested in (
        ("inside='jailed'", inside == "jailed"),
        ("fair_share=True", fair_share),
    ):
        if requested and has_own_kernel(runtime):
            raise ValueError(
                f"{name} does not work with runtime {runtime!r}, which has a "
                "kernel of its own; use the default runtime"
            )


def check_room(limits: Limits, container: ContainerLimits | None) -> None:
    """Raise ValueError if one session with `limits` could exceed its container."""
    container = container or ContainerLimits()
    for name, limit in (("memory", container.memory), ("processes", container.processes)):
        needed = int(getattr(limits, name))
        if limit is not None and needed > int(limit):
            raise ValueError(
                f"container_limits: {name}={int(limit):,} is less than the limit of one session: "
                f"Limits.{name}={needed:,}"
            )


def has_own_kernel(runtime: str | None) -> bool:
    """Return whether the name of a runtime matches `OWN_KERNEL`; a name proves nothing."""
    return any(part.startswith(OWN_KERNEL) for part in (runtime or "").lower().split("."))

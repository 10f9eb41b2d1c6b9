"""The jail as two ordered lists: what a session's init does, then what each worker does.

The order is the security property. Every step raises when it fails; there is no half-built jail to
fall back to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..errors import IsolationError
from . import capabilities, mounts, namespaces, processes, rlimits, seccomp, users


@dataclass(frozen=True, slots=True)
class Jail:
    """What the steps need to know of one session."""

    slot: int | None  # number of the session's own uids; None: the host may not assign any
    workspace: int  # bytes
    rlimits: list[tuple[int, tuple[int, int]]]  # as rlimits.plan makes them
    last_capability: int
    seal: bytes  # the filter that closes what the template still needs
    wait_for_maps: Callable[[], None]
    kept: set[int] = field(default_factory=set)  # descriptors


Step: TypeAlias = tuple[str, Callable[[Jail], None]]


def _become_init(jail: Jail) -> None:
    if jail.slot is not None:
        users.become(users.INIT_ID)


def _become_code(jail: Jail) -> None:
    # An ordinary user's session has one uid only, and starts with it.
    if jail.slot is not None:
        users.become(users.CODE_ID)


# As pid 1 of the new namespaces, with every capability in them and none outside.
INIT: Sequence[Step] = (
    ("descriptors", lambda jail: processes.keep_descriptors(jail.kept)),
    ("hostname", lambda jail: namespaces.set_hostname()),
    ("proc", lambda jail: mounts.mount_proc()),
    # While init still may; its workers inherit it.
    ("bounding set", lambda jail: capabilities.empty_bounding_set(jail.last_capability)),
    # The maps are written by the zygote meanwhile; uids mean nothing before.
    ("id maps", lambda jail: jail.wait_for_maps()),
    ("init user", _become_init),
    ("private mounts", lambda jail: mounts.mount_private(jail.workspace, users.CODE_ID)),
    # After the last change of credentials, which would clear both.
    ("parent death signal", lambda jail: processes.die_with_parent()),
    ("memory access", lambda jail: processes.hide_memory()),
)

# In the worker, forked from init, before any code of the session runs.
WORKER: Sequence[Step] = (
    ("resource limits", lambda jail: rlimits.apply(jail.rlimits)),
    ("code user", _become_code),
    ("capabilities", lambda jail: capabilities.drop_all()),
    ("no new privileges", lambda jail: processes.forbid_new_privileges()),
    ("memory access", lambda jail: processes.hide_memory()),
    # Last: it forbids what the steps above need.
    ("seccomp", lambda jail: seccomp.load(jail.seal)),
)


def contain(jail: Jail, steps: Sequence[Step]) -> None:
    """Apply every step in order, or raise IsolationError naming the one that failed."""
    for name, apply in steps:
        try:
            apply(jail)
        except OSError as error:
            raise IsolationError("jailed", name, str(error)) from error

"""Settings of one session's jail, which the steps of a recipe read."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .landlock import ruleset


class ForkLimit(NamedTuple):
    """Admission of forks by another process, and the maximum number of processes of a session."""

    limiter: socket.socket
    filter: bytes  # from fork_notifications.program
    limit: int


@dataclass(slots=True)
class Jail:
    """Settings of one session's jail, and findings of its worker."""

    slot: int | None  # number of the session's own uids; None: the host may not assign any
    workspace: int  # bytes
    rlimits: list[tuple[int, tuple[int, int]]]  # from rlimits.plan
    last_capability: int
    final_filter: bytes  # closes the calls that only the template needs
    files: ruleset.Plan
    tier: str = "jailed"
    folder: str = ""  # the session's own directory; "" where it has private mounts
    interpreter: Sequence[str] = ()  # paths that code must be able to read
    covered: Mapping[str, str] = field(default_factory=dict)  # from mounts.covered
    # Number of cgroups to join; 0 if the session is born into its cgroup; None without a cgroup.
    groups: int | None = None
    snapshots: int = -1  # number of snapshots besides the current one; -1: none at all
    shared: int = 0  # address of the page that init and worker share; 0: there is none
    descriptors: set[int] = field(default_factory=set)  # those that the contained process keeps
    findings: dict[str, int] = field(
        default_factory=dict
    )  # the worker's measurements, before any code
    home: str = ""  # the workspace of a branch; "" for the session's own
    forks: ForkLimit | None = None  # where the kernel does not limit the session's processes

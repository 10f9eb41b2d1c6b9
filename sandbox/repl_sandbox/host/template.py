"""`TemplateProcess`: a running zygote and the cgroups of its sessions, in the best tier."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..errors import IsolationError
from ..jail import mounts as private
from ..jail.rlimits import open_files
from ..jail.users import SLOTS
from ..options import Grouping, SandboxSettings, confirm, strongest
from ..types import Limits
from .cgroup_files import find
from .cgroups import CgroupPool, SessionCgroup, open_groups
from .isolation import probe
from .links import SessionLinks
from .nested import NestedZygote, ZygotePerSession
from .zygote import ZygoteHandle

if TYPE_CHECKING:
    from .shared_objects import SharedObjects


# `ResourceBudget`: the limits of each process of a session, and of its cgroup.
#
# `Limits` are for the user's code. Besides, a session has processes of the engine, snapshots, and
# pages of its template that it has written to. The branches of a session share its cgroup: each
# may hold as much again.

# init, besides the worker.
_OWN_PROCESSES = 2
# Spare processes of the cgroup of a session under fair share, above RLIMIT_NPROC, which counts the
# worker's user alone: RLIMIT_NPROC then refuses the forks of a fork bomb in 3 µs, before anything
# is copied; the cgroup would take 300 µs, under locks that every fork on the machine needs.
_SPARE_PROCESSES = 16
# Spare processes of a session whose forks are admitted one by one: the watchdog can then see that
# the limit was exceeded.
_EXCESS = 2
# Memory of the cgroup for the engine: init's pages, page tables, kernel stacks.
_OWN_MEMORY = 32 << 20


@dataclass(frozen=True, slots=True)
class ResourceBudget:
    """The limits of the sessions of one template.

    `snapshots`: the number that a session keeps besides the current one, -1 for not even that.
    `data_segment`, `process_limit`: the zygote's report of itself. `template_memory`: bytes of the
    zygote. `fair_share`: sessions must not harm others. `own_user`: each has a user of its own.
    """

    snapshots: int
    data_segment: int
    process_limit: int
    template_memory: int
    fair_share: bool
    own_user: bool

    @property
    def own_processes(self) -> int:
        """Processes of one branch that are not its code's, and its worker."""
        # Snapshots: of each state that is kept, of the current one, and one more while it is made,
        # perhaps with a process between.
        return _OWN_PROCESSES + (0 if self.snapshots < 0 else self.snapshots + 3)

    def rlimits(self, limits: Limits) -> dict[str, int]:
        """The limits of each process of a session, by the names of `jail.rlimits`."""
        rlimits = {
            "DATA": self.data_segment + int(limits.memory),
            # The kernel counts by user. If that is also the host's user, this only stops fork
            # bombs, and the watchdog counts the session's processes.
            "NPROC": self.process_limit or self._processes(limits, 1),
            "NOFILE": open_files(limits.open_files, own_user=self.own_user),
            "FSIZE": int(limits.file_size),
        }
        if limits.cpu_seconds is not None:
            rlimits["CPU"] = max(1, round(limits.cpu_seconds))
        return rlimits

    def of_group(self, limits: Limits, branches: int = 1) -> tuple[int, int]:
        """The limits of the cgroup of a session with `branches`: bytes, and processes."""
        spare = _SPARE_PROCESSES if self.fair_share else 0
        return self._memory(limits, branches), self._processes(limits, branches) + spare

    def forked(self, limits: Limits) -> int:
        """The number of processes beyond which a session's forks are refused, where forks are
        admitted.
        """
        return self._processes(limits, 1) + _EXCESS

    def adjust(self, links: SessionLinks, limits: Limits) -> Callable[[int], None]:
        """Return a function that adapts the cgroup of the session at `links` to its number of
        branches.
        """
        group = links.group

        def adjust(branches: int) -> None:
            if group is not None:
                group.limit(*self.of_group(limits, branches))

        return adjust

    def _memory(self, limits: Limits, branches: int) -> int:
        # Memory that a cell rewrites exists twice while a snapshot keeps the old pages.
        session_memory = int(limits.memory) * (1 if self.snapshots < 0 else 2)
        # Files outlive the worker, so they must leave the next worker all of its memory.
        files = private.capacity(int(limits.workspace))
        return branches * session_memory + files + self.template_memory + _OWN_MEMORY

    def _processes(self, limits: Limits, branches: int) -> int:
        return limits.processes + branches * self.own_processes


# `TemplateProcess`.
#
# A sandbox starts it first and ends it last. It can start sessions, and does not keep them.

# Steps of sessions with a cgroup only.
_GROUP_STEPS = ("cgroup", "memory kill")

# Each session of this process gets its own slot, hence its own uids; processes start at random
# slots.
_slots = itertools.count(secrets.randbelow(SLOTS))


AnyZygote: TypeAlias = ZygoteHandle | ZygotePerSession


class TemplateProcess:
    """The zygote that `start` starts. `snapshots` and `fair_share` are as in `ResourceBudget`.

    It owns `groups` from here on, even if it raises; None: its sessions have no cgroups.
    """

    def __init__(
        self,
        start: Callable[[], AnyZygote],
        groups: CgroupPool | None,
        snapshots: int,
        *,
        fair_share: bool,
    ) -> None:
        self._groups = groups
        try:
            zygote = self.zygote = start()
        except BaseException:
            self._remove_groups()
            raise
        try:
            memory = zygote.private_memory()
        except BaseException:
            self.close()
            raise
        self.budget = ResourceBudget(
            snapshots if zygote.supports_snapshots else -1,
            zygote.data_segment,
            zygote.process_limit,
            memory,
            fair_share,
            zygote.privileged,
        )

    @classmethod
    def of(
        cls,
        start: Callable[[], AnyZygote],
        tier: str,
        cgroup: Grouping,
        limits: Limits,
        snapshots: int,
        *,
        fair_share: bool,
    ) -> TemplateProcess:
        """Start a template of `tier`, and verify the tier with a session with `limits`.

        A jail that cannot be built is thus an error of `Sandbox`, not of a session.

        Raises:
            IsolationError: the tier, or the cgroup that `cgroup` requires, does not work here.
            SandboxError: as `ZygoteHandle`.
        """
        groups = _groups(cgroup, weighted=fair_share) if tier == "jailed" else None
        template = cls(start, groups, snapshots, fair_share=fair_share)
        try:
            template._verify(tier, cgroup, limits)
        except BaseException:
            template.close()
            raise
        return template

    def fork(self, parcel: SharedObjects) -> TemplateProcess:
        """Fork a template with shared objects in it; raise SandboxError if that fails.

        It is not verified again.
        """
        snapshots, fair_share = self.budget.snapshots, self.budget.fair_share
        groups = None if self._groups is None else _groups("require", weighted=fair_share)
        return TemplateProcess(
            lambda: _nest(self.zygote, parcel),
            groups,
            snapshots,
            fair_share=fair_share,
        )

    def begin(self, limits: Limits) -> SessionLinks:
        """Request a session with these limits, as `ZygoteHandle.begin`."""
        return self.zygote.begin(*self._spawn_arguments(limits))

    def spawn(self, limits: Limits) -> SessionLinks:
        """Start a session with these limits: its jail is complete and its worker waits.

        Raises:
            IsolationError: a step of the jail failed.
        """
        links = self.begin(limits)
        self.zygote.finish(links)
        return links

    def close(self) -> None:
        """End the template, and with it all its sessions."""
        try:
            self.zygote.close()
        finally:
            self._remove_groups()

    def _spawn_arguments(
        self, limits: Limits
    ) -> tuple[int, int, dict[str, int], SessionCgroup | None, int, int]:
        """The arguments of a request for a session."""
        rlimits, slot = self.budget.rlimits(limits), next(_slots) % SLOTS
        group = None
        if self._groups is not None:
            group = self._groups.take(*self.budget.of_group(limits))
        snapshots, max_processes = self.budget.snapshots, self.budget.forked(limits)
        return slot, int(limits.workspace), rlimits, group, snapshots, max_processes

    def _verify(self, tier: str, cgroup: Grouping, limits: Limits) -> None:
        try:
            self._verify_session(tier, limits)
        except IsolationError as error:
            if cgroup != "auto" or self._groups is None or error.step not in _GROUP_STEPS:
                raise
            # "auto" permits no cgroup; the layer will be reported as not active.
            self._remove_groups()
            self._verify_session(tier, limits)

    def _verify_session(self, tier: str, limits: Limits) -> None:
        links = self.spawn(limits)
        try:
            confirm(tier, probe(links))
        finally:
            self.zygote.end(links)

    def _remove_groups(self) -> None:
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.close()


def _groups(cgroup: Grouping, *, weighted: bool) -> CgroupPool | None:
    if cgroup == "off":
        return None
    try:
        return open_groups(find(), weighted=weighted)
    except IsolationError:
        if cgroup == "require":
            raise
        return None


def _nest(zygote: AnyZygote, parcel: SharedObjects) -> AnyZygote:
    """Fork `zygote` with objects in it."""
    if isinstance(zygote, ZygotePerSession):
        return zygote.nest(parcel.fd, parcel.manifest)
    return NestedZygote(zygote, parcel.fd, parcel.manifest)


# `start_template`: the template of a sandbox, in the strongest acceptable tier that works.


def start_template(
    settings: SandboxSettings,
) -> tuple[TemplateProcess, tuple[IsolationError, ...]]:
    """Return the template, and the errors of the stronger tiers that do not work here.

    Raises:
        IsolationError: no acceptable tier works here.
        SandboxError: the interpreter does not start, or lacks a module.
    """

    def start(tier: str) -> TemplateProcess:
        zygote = partial(
            ZygoteHandle,
            settings.python,
            settings.preload,
            settings.template_mounts,
            settings.policy,
            tier,
            settings.hash_seed,
            settings.launch,
        )
        return TemplateProcess.of(
            partial(ZygotePerSession, zygote) if settings.per_session else zygote,
            tier,
            settings.cgroup,
            settings.limits,
            settings.snapshots,
            fair_share=settings.fair_share,
        )

    return strongest(settings.tiers, start)

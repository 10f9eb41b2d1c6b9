"""`TemplateProcess`: a running zygote, and the cgroups of its sessions.

A sandbox starts it first and ends it last. It can start sessions, and does not keep them.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ..backends.isolation_tiers import confirm
from ..backends.sandbox_arguments import Grouping
from ..errors import IsolationError
from ..jail.users import SLOTS
from ..limits.cgroups.cgroup_pool import CgroupPool, open_groups
from ..limits.cgroups.cgroup_root import find
from ..limits.cgroups.session_cgroup import SessionCgroup
from ..limits.resource_budget import ResourceBudget
from ..session_limits import Limits
from ..zygote.client.measured_isolation import probe
from ..zygote.client.nested_zygote import NestedZygote
from ..zygote.client.session_links import SessionLinks
from ..zygote.client.zygote_handle import ZygoteHandle
from ..zygote.client.zygote_per_session import ZygotePerSession

if TYPE_CHECKING:
    from ..zygote.client.shared_objects import SharedObjects

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

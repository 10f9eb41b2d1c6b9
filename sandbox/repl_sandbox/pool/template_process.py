"""`TemplateProcess`: a zygote that runs, and what holds its sessions from outside: their groups.

A sandbox starts it first and ends it last. It knows how a session is made, and not which there are.
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
from ..types import Limits
from ..zygote.client.measured_isolation import probe
from ..zygote.client.nested_zygote import NestedZygote
from ..zygote.client.session_links import SessionLinks
from ..zygote.client.zygote_handle import ZygoteHandle
from ..zygote.client.zygote_per_session import ZygotePerSession

if TYPE_CHECKING:
    from ..zygote.client.shared_objects import SharedObjects

# Steps that only a session with a group has.
_GROUP_STEPS = ("cgroup", "memory kill")

# Each session of this process gets its own slot, hence its own uids; processes start apart.
_slots = itertools.count(secrets.randbelow(SLOTS))


AnyZygote: TypeAlias = ZygoteHandle | ZygotePerSession


class TemplateProcess:
    """What `start` starts. `snapshots` and `fair_share` are as in `ResourceBudget`.

    `groups` are its own from here on, whatever happens; None: its sessions have none.
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
            snapshots if zygote.copies else -1,
            zygote.data_segment,
            zygote.room,
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
        """One of `tier`, of which a session with `limits` was made to see that it is what it says.

        A jail that cannot be built is the error of who makes the sandbox, not of a session.

        Raises:
            IsolationError: the tier, or the group that `cgroup` requires, cannot be had.
            SandboxError: as `ZygoteHandle`.
        """
        groups = _groups(cgroup, weighed=fair_share) if tier == "jailed" else None
        template = cls(start, groups, snapshots, fair_share=fair_share)
        try:
            template._try(tier, cgroup, limits)
        except BaseException:
            template.close()
            raise
        return template

    def fork(self, parcel: SharedObjects) -> TemplateProcess:
        """One that is forked from this one, with objects in it; SandboxError if it cannot be.

        It is not tried: this one was.
        """
        snapshots, fair_share = self.budget.snapshots, self.budget.fair_share
        groups = None if self._groups is None else _groups("require", weighed=fair_share)
        return TemplateProcess(
            lambda: _grown(self.zygote, parcel),
            groups,
            snapshots,
            fair_share=fair_share,
        )

    def begin(self, limits: Limits) -> SessionLinks:
        """Ask for a session with these limits, as `ZygoteHandle.begin`."""
        return self.zygote.begin(*self._terms(limits))

    def spawn(self, limits: Limits) -> SessionLinks:
        """A session with these limits: its jail is complete and its worker waits.

        Raises:
            IsolationError: a step of the jail failed.
        """
        links = self.begin(limits)
        self.zygote.finish(links)
        return links

    def close(self) -> None:
        """End it, and with it all its sessions."""
        try:
            self.zygote.close()
        finally:
            self._remove_groups()

    def _terms(
        self, limits: Limits
    ) -> tuple[int, int, dict[str, int], SessionCgroup | None, int, int]:
        """What a session is asked for by."""
        rlimits, slot = self.budget.rlimits(limits), next(_slots) % SLOTS
        group = None
        if self._groups is not None:
            group = self._groups.take(*self.budget.of_group(limits))
        snapshots, most = self.budget.snapshots, self.budget.forked(limits)
        return slot, int(limits.workspace), rlimits, group, snapshots, most

    def _try(self, tier: str, cgroup: Grouping, limits: Limits) -> None:
        try:
            self._try_session(tier, limits)
        except IsolationError as error:
            if cgroup != "auto" or self._groups is None or error.step not in _GROUP_STEPS:
                raise
            # Nothing was promised yet; the layer will say that there is none.
            self._remove_groups()
            self._try_session(tier, limits)

    def _try_session(self, tier: str, limits: Limits) -> None:
        links = self.spawn(limits)
        try:
            confirm(tier, probe(links))
        finally:
            self.zygote.end(links)

    def _remove_groups(self) -> None:
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.close()


def _groups(cgroup: Grouping, *, weighed: bool) -> CgroupPool | None:
    if cgroup == "off":
        return None
    try:
        return open_groups(find(), weighed=weighed)
    except IsolationError:
        if cgroup == "require":
            raise
        return None


def _grown(zygote: AnyZygote, parcel: SharedObjects) -> AnyZygote:
    """A fork of `zygote` with objects in it."""
    if isinstance(zygote, ZygotePerSession):
        return zygote.grown(parcel.fd, parcel.manifest)
    return NestedZygote(zygote, parcel.fd, parcel.manifest)

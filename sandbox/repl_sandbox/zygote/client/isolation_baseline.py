"""`IsolationBaseline`: the host and the template, with which a session's isolation is compared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...limits.process_queries import NAMESPACES, ProcessQuery, namespace, query_here, read, status

__all__ = ["NAMESPACES", "ContainerIsolation", "IsolationBaseline", "namespace", "read", "status"]


@dataclass(frozen=True, slots=True)
class ContainerIsolation:
    """A template's container, as probed before the template was configured.

    `missing`: layers that were not found. `filters`: the number of its seccomp filters, with those
    of the host. `own_kernel`: whether its kernel is another than the host's. `one`: whether it is
    made for one session.
    """

    missing: tuple[str, ...]
    filters: int
    own_kernel: bool = False
    one: bool = False


class IsolationBaseline:
    """This process, and the template with process id `template`.

    Each fact is read once, when it is needed, with OSError if it cannot be read: changes of the
    host do not concern its sessions, which are forked from the template. Made before the template
    serves, because the template enters another network for each session. `container`: the container
    that the template is in. `query`: queries processes where these are; "self" is then the process
    that answers.
    """

    def __init__(
        self,
        template: int,
        container: ContainerIsolation | None = None,
        query: ProcessQuery | None = None,
    ) -> None:
        self.template = template
        self.container = container
        self.query = query or query_here
        self.is_remote = query is not None
        with contextlib.suppress(OSError):
            _ = self.namespaces

    def of(self, template: int) -> IsolationBaseline:
        """The baseline of a template that was forked from this one."""
        return IsolationBaseline(template, self.container, self.query if self.is_remote else None)

    @cached_property
    def namespaces(self) -> Mapping[str, frozenset[str]]:
        """The namespaces of the host and of the template, by name."""
        return {
            name: frozenset(self.query("namespace", pid, name) for pid in ("self", self.template))
            for name in NAMESPACES
        }

    @cached_property
    def uid_map(self) -> str:
        """The host's uid map: its users in terms of the parent namespace."""
        text: str = self.query("read", "self", "uid_map")
        return text

    @cached_property
    def uids(self) -> frozenset[int]:
        """The users of the host and of the template."""
        uids = {os.geteuid()}
        with contextlib.suppress(OSError):
            uids.add(int(self.query("status", self.template)["Uid"].split()[0]))
        return frozenset(uids)

    @cached_property
    def filters(self) -> int:
        """The number of seccomp filters of the template before it loads its own.

        A container may have added them around the host, or around the template alone.
        """
        if self.container is not None:
            return self.container.filters
        return int(status("self").get("Seccomp_filters", "0"))

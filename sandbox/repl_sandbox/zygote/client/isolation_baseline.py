"""What a session is told apart from: the host, and the template that it was forked from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...limits.process_queries import NAMESPACES, Look, here, namespace, read, status

__all__ = ["NAMESPACES", "ContainerIsolation", "IsolationBaseline", "namespace", "read", "status"]


@dataclass(frozen=True, slots=True)
class ContainerIsolation:
    """A template's container, as it was found before the template was configured.

    `missing`: the walls that it was not seen to have. `filters`: its filters of seccomp, with those
    of the host. `own_kernel`: whether its kernel was seen to be another than the host's. `one`:
    whether it is made for one session.
    """

    missing: tuple[str, ...]
    filters: int
    own_kernel: bool = False
    one: bool = False


class IsolationBaseline:
    """This process and that of the template, whose process id is `template`.

    Each fact is looked at once, with OSError when it is asked for and cannot be seen: what the host
    changes about itself is not its sessions', which are forked from the template. Is to be made
    before the template serves, which for each session enters another network. `enclosure`: the
    container that the template is in. `look`: looks at processes where these are; "self" is then
    the one that looks.
    """

    def __init__(
        self, template: int, enclosure: ContainerIsolation | None = None, look: Look | None = None
    ) -> None:
        self.template = template
        self.enclosure = enclosure
        self.look = look or here
        self.is_apart = look is not None
        with contextlib.suppress(OSError):
            _ = self.namespaces

    def of(self, template: int) -> IsolationBaseline:
        """The same for a template that was forked from this one."""
        return IsolationBaseline(template, self.enclosure, self.look if self.is_apart else None)

    @cached_property
    def namespaces(self) -> Mapping[str, frozenset[str]]:
        """The host's namespaces and the template's, by name."""
        return {
            name: frozenset(self.look("namespace", pid, name) for pid in ("self", self.template))
            for name in NAMESPACES
        }

    @cached_property
    def uid_map(self) -> str:
        """Which users of its parent namespace those of the host's are."""
        text: str = self.look("read", "self", "uid_map")
        return text

    @cached_property
    def uids(self) -> frozenset[int]:
        """The users that the host and the template are."""
        uids = {os.geteuid()}
        with contextlib.suppress(OSError):
            uids.add(int(self.look("status", self.template)["Uid"].split()[0]))
        return frozenset(uids)

    @cached_property
    def filters(self) -> int:
        """Filters of seccomp that hold the template before it loads its own.

        A container may have put them around the host, or around the template alone.
        """
        if self.enclosure is not None:
            return self.enclosure.filters
        return int(status("self").get("Seccomp_filters", "0"))

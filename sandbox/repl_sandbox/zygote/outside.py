"""What a session is told apart from: the host, and the template that it was forked from."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

# In the order in which they are reported.
NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
# Of /proc/PID/status, proc_pid_status(5): a few of some sixty lines, read for every session.
_FIELD = re.compile(r"^(Uid|NSpid|Cap\w+|NoNewPrivs|Seccomp|Seccomp_filters):\t(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A template's container, as it was found before the template was configured.

    `missing`: the walls that it was not seen to have. `filters`: its filters of seccomp, with those
    of the host.
    """

    missing: tuple[str, ...]
    filters: int


class Outside:
    """This process and that of the template, whose process id is `template`.

    Each fact is looked at once, with OSError when it is asked for and cannot be seen: what the host
    changes about itself is not its sessions', which are forked from the template. Is to be made
    before the template serves, which for each session enters another network. `enclosure`: the
    container that the template is in.
    """

    def __init__(self, template: int, enclosure: Enclosure | None = None) -> None:
        self.template = template
        self.enclosure = enclosure
        with contextlib.suppress(OSError):
            _ = self.namespaces

    @cached_property
    def namespaces(self) -> Mapping[str, frozenset[str]]:
        """The host's namespaces and the template's, by name."""
        return {
            name: frozenset(namespace(pid, name) for pid in ("self", self.template))
            for name in NAMESPACES
        }

    @cached_property
    def uid_map(self) -> str:
        """Which users of its parent namespace those of the host's are."""
        return read("self", "uid_map")

    @cached_property
    def uids(self) -> frozenset[int]:
        """The users that the host and the template are."""
        uids = {os.geteuid()}
        with contextlib.suppress(OSError):
            uids.add(int(status(self.template)["Uid"].split()[0]))
        return frozenset(uids)

    @cached_property
    def filters(self) -> int:
        """Filters of seccomp that hold the template before it loads its own.

        A container may have put them around the host, or around the template alone.
        """
        if self.enclosure is not None:
            return self.enclosure.filters
        return int(status("self").get("Seccomp_filters", "0"))


def namespace(pid: int | str, name: str) -> str:
    """A namespace that a process is in: its name and number, as proc_pid_ns(5) has them."""
    return os.readlink(f"/proc/{pid}/ns/{name}")


def status(pid: int | str) -> dict[str, str]:
    """Users, capabilities and filters of a process, as the kernel writes them."""
    return dict(_FIELD.findall(read(pid, "status")))


def read(pid: int | str, name: str) -> str:
    """A file of a process in /proc; unbuffered, for each is read once and in one piece."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read().decode("utf-8", "replace")

"""Labels of containers: the process that made the container, and whether it still lives."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...limits.proc_stat import began

# One label, because a daemon can filter by it.
OWNER = "repl-env.owner"


def of_this_process() -> dict[str, str]:
    """The labels of a container that this process makes."""
    pid = os.getpid()
    return {OWNER: f"{_system()} {pid} {began(pid)}"}


def is_left(labels: Mapping[str, str]) -> bool:
    """Return whether the process that made a container is gone.

    Processes in other pid namespaces are unknown, so their containers do not count as orphaned.
    """
    system, _, rest = labels.get(OWNER, "").partition(" ")
    numbers = rest.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return False
    boot, _, namespace = system.partition("/")
    own_boot, _, own_namespace = _system().partition("/")
    if boot != own_boot:
        return True
    pid, then = map(int, numbers)
    return namespace == own_namespace and began(pid) != then


def _system() -> str:
    """The boot id of the system, and the pid namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"

"""The isolation of a container, as the kernel shows it of its first process, whatever the runtime's
name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ...zygote.client.isolation_baseline import ContainerIsolation, namespace, read, status

# Without a user namespace the container's user is one of the host, never root.
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def probe(pid: int) -> ContainerIsolation:
    """Probe the isolation of process `pid`, which must not have hidden its memory yet.

    A layer that cannot be seen counts as missing. OSError: the process is gone.
    """
    host_path, own = status(pid), status("self")
    filters = int(host_path.get("Seccomp_filters", "0"))
    walls: dict[str, Callable[[], bool]] = {
        **{f"an own {name} namespace": _own(pid, name) for name in _NAMESPACES},
        "a read-only root": lambda: bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY),
        "no capabilities": lambda: all(int(host_path[name], 16) == 0 for name in _CAPABILITIES),
        "no new privileges": lambda: host_path["NoNewPrivs"] == "1",
        "a filter of system calls": lambda: (
            host_path["Seccomp"] == "2" and filters > int(own.get("Seccomp_filters", "0"))
        ),
        "no network": lambda: set(_interfaces(pid)) <= {"lo"},
        "another user than root": lambda: "0" not in host_path["Uid"].split(),
    }
    return ContainerIsolation(
        tuple(name for name, is_active in walls.items() if not _holds(is_active)), filters
    )


def _own(pid: int, name: str) -> Callable[[], bool]:
    return lambda: namespace(pid, name) != namespace("self", name)


def _holds(is_active: Callable[[], bool]) -> bool:
    try:
        return is_active()
    except (OSError, KeyError):
        return False


def _interfaces(pid: int) -> Iterator[str]:
    """The network interfaces that a process sees: proc_pid_net(5), after two header lines."""
    for line in read(pid, "net/dev").splitlines()[2:]:
        yield line.partition(":")[0].strip()

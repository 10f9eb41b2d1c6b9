"""The isolation of a container, as its first process finds it before any code of a session runs."""

from __future__ import annotations

import os
import platform
from typing import Any

from ...host.proc import NAMESPACES, namespace, read, status
from ...jail import processes


def measure() -> dict[str, Any]:
    """Return facts as JSON; one that cannot be read is left out."""
    facts: dict[str, Any] = {"kernel": [platform.release(), platform.version()]}
    for name, fact in (
        ("status", lambda: status("self")),
        ("interfaces", _interfaces),
        ("read_only", lambda: bool(os.statvfs("/").f_flag & os.ST_RDONLY) or _is_read_only()),
        ("no_new_privs", processes.gains_no_privileges),
    ):
        try:
            facts[name] = fact()
        except OSError:
            continue
    facts["namespaces"] = {}
    for name in NAMESPACES:
        try:
            facts["namespaces"][name] = namespace("self", name)
        except OSError:
            continue
    return facts


def _interfaces() -> list[str]:
    """proc_pid_net(5), after two header lines."""
    return [line.partition(":")[0].strip() for line in read("self", "net/dev").splitlines()[2:]]


def _is_read_only() -> bool:
    """Return whether the mount table says so, if the kernel's statvfs(3) does not."""
    for line in read("self", "mounts").splitlines():
        _, place, _, options, *_ = line.split()
        if place == "/":
            return "ro" in options.split(",")
    return False

"""The profile of a container whose sessions are jailed inside: rights added, calls still refused.

The engine's filter forbids the namespaces and mounts that a jail is made of, and its covers over
/proc forbid a /proc for each session. In their place: a filter that refuses what nothing in a
container needs, and an uncovered /proc, whose files are those of another user.
"""

from __future__ import annotations

import json
from typing import Any, Final

# By the names of `libseccomp`: what the engine's default filter refuses to a container without
# capabilities, but for namespaces, mounts and what names them.
_REFUSED: Final = (
    *("acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module"),
    *("delete_module", "fanotify_init", "finit_module", "get_kernel_syms", "get_mempolicy"),
    *("init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl"),
    *("kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "move_pages"),
    *("nfsservctl", "open_by_handle_at", "perf_event_open", "process_vm_readv"),
    *("process_vm_writev", "ptrace", "query_module", "quotactl", "reboot", "request_key"),
    *("set_mempolicy", "settimeofday", "stime", "swapoff", "swapon", "syslog", "sysfs"),
    *("_sysctl", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old"),
)
_EPERM: Final = 1


def security_options() -> list[str]:
    """Of the container: the filter, and no profile of AppArmor, which forbids to mount."""
    rules = [{"names": list(_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    return [f"seccomp={json.dumps(profile)}", "apparmor=unconfined"]


# Of the daemon's configuration of a container, for which the `docker` package has no argument.
UNCOVERED: Final[dict[str, Any]] = {"MaskedPaths": [], "ReadonlyPaths": []}

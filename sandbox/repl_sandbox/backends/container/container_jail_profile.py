"""The profile of a container whose sessions are jailed inside: added rights, and calls still
refused.

The container engine's filter forbids the namespaces and mounts that a jail consists of, and its
masks over /proc forbid a /proc for each session. Instead: a filter that refuses what no container
needs, and an unmasked /proc, whose files belong to another user.
"""

from __future__ import annotations

import json
from typing import Any, Final

# By the names of `libseccomp`: the calls that the engine's default filter refuses to a container
# without capabilities, except for namespaces, mounts and the hostname.
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
    """The security options of the container: the filter, and no AppArmor profile, which forbids
    mounts.
    """
    rules = [{"names": list(_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    return [f"seccomp={json.dumps(profile)}", "apparmor=unconfined"]


# Part of the daemon's configuration of a container, for which the `docker` package has no argument.
UNCOVERED: Final[dict[str, Any]] = {"MaskedPaths": [], "ReadonlyPaths": []}

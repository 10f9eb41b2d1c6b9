"""`make test-aarch64`: tests of the engine on an emulated aarch64 machine.

python -m tests.emulated [arguments of pytest]. As root, with the programs of `machine.TOOLS`. What
it makes is kept in `build/aarch64`, which `make clean` removes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .machine import Machine, MachineError

# Tests that depend on the machine: numbers and layouts of system calls, filters, the native core,
# addresses of objects, pages. All tests of the engine take some hours there.
DEPENDENT = (
    *(
        "tests/sandbox/native",
        "tests/sandbox/jail/test_seccomp_filters.py",
        "tests/sandbox/jail/test_syscalls.py",
    ),
    *("tests/sandbox/native/test_session_spawn.py", "tests/sandbox/jail/test_first_worker.py"),
    *(
        "tests/sandbox/native/test_snapshot_fork.py",
        "tests/sandbox/zygote/test_immortal_objects.py",
    ),
    *("tests/sandbox/snapshots/test_recovery.py", "tests/sandbox/snapshots/test_copied_state.py"),
    *("tests/security/jail/test_landlock.py", "tests/security/jail/test_jail_powers.py"),
    *("tests/security/jail/test_jail_view.py", "tests/security/cgroups/test_cgroups.py"),
    "tests/security/cgroups/test_cgroup_removal.py",
)


def main() -> int:
    """The exit status of pytest there; 2 if there is no such machine."""
    checkout = Path(__file__).parents[2]
    try:
        machine = Machine.prepared(checkout / "build" / "aarch64", checkout)
        return machine.run(checkout, sys.argv[1:] or DEPENDENT)
    except MachineError as error:
        print(f"test-aarch64: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

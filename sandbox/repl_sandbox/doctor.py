"""`probe`: the kernel facilities that the isolation tiers need, each tried on this system.

Covers: one trial for each facility, in a forked child, so that nothing of this process changes.
Does not cover: a session as a whole; `repl-env doctor` also starts one.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .display import set_module


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True)
class Facility:
    """A facility of the system, and whether it works here.

    Attributes:
        name: Its name for people.
        tiers: The isolation tiers that need it. Other tiers are stronger with it.
        ok: True if it works.
        detail: The result of the trial: a version, a path, or the error.
        remedy: Instructions to make it available; empty if it works.
    """

    name: str
    tiers: tuple[str, ...]
    ok: bool
    detail: str
    remedy: str


@set_module("repl_sandbox")
def probe() -> tuple[Facility, ...]:
    """Try every facility that sessions can use; off Linux only those that exist everywhere."""
    checks = CHECKS if sys.platform == "linux" else CHECKS[:2]
    return tuple(check.run() for check in checks)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one trial; `remedy` where the trial knows a better one than the check."""

    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """How to try one facility. `tiers`: as of `Facility`."""

    name: str
    tiers: tuple[str, ...]
    trial: Callable[[], Finding]
    remedy: str

    def run(self) -> Facility:
        """Try the facility. A system without the files that the trial reads lacks the facility."""
        try:
            found = self.trial()
        except OSError as error:
            found = Finding(False, f"the trial failed: {error}")
        remedy = "" if found.ok else found.remedy or self.remedy
        return Facility(self.name, self.tiers, found.ok, found.detail, remedy)


def _system() -> Finding:
    return Finding(sys.platform == "linux", f"{platform.system()} {platform.release()}")


def _python() -> Finding:
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding(sys.implementation.name == "cpython" and sys.version_info >= (3, 11), name)


def _machine() -> Finding:
    return Finding(platform.machine() in {"x86_64", "aarch64"}, platform.machine())


def _native() -> Finding:
    from .errors import IsolationError
    from .native import library

    try:
        found = library.load()
    except IsolationError as error:
        return Finding(False, error.message, error.remedy)
    return Finding(True, f"{found.path}, build {found.build_hash}, by {found.compiler}")


def _tried(action: Callable[[], None], detail: str = "works") -> Finding:
    """Run `action` in a forked child; the errno of its OSError is the child's exit status."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError as error:
            os._exit(error.errno or 255)
        except BaseException:  # noqa: BLE001 (the child must end here, whatever was raised)
            os._exit(255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return Finding(True, detail)
    return Finding(False, os.strerror(code) if 0 < code < 255 else "failed without an errno")


def _namespace(kind: str) -> Callable[[], Finding]:
    def probe() -> Finding:
        from .native import libc

        flag = getattr(libc, f"CLONE_NEW{kind}")
        # Together with a user namespace, as a session gets the namespace, as root too.
        return _tried(lambda: libc.unshare(libc.CLONE_NEWUSER | flag))

    return probe


def _mount_setattr() -> Finding:
    from .native import libc

    def action() -> None:
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
        libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("/", "/", "none", libc.MS_BIND | libc.MS_REC)
        libc.mount_setattr("/", libc.MOUNT_ATTR_RDONLY, recursive=True)

    return _tried(action)


def _fresh_proc() -> Finding:
    from .native import libc

    def mount_in_new_pid_namespace() -> None:
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWPID | libc.CLONE_NEWNS)
        child = os.fork()  # a pid namespace starts with the next child
        if child == 0:
            try:
                libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
                libc.mount("proc", "/proc", "proc", libc.MS_NOSUID | libc.MS_NODEV)
            except OSError as error:
                os._exit(error.errno or 255)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    return _tried(mount_in_new_pid_namespace)


def _seccomp() -> Finding:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:  # a /proc that shows processes only
        from .jail import seccomp

        assembler = seccomp.Assembler()
        assembler.ret(seccomp.SECCOMP_RET_ALLOW)
        return _tried(lambda: _load(assembler.assemble()))
    return Finding({"errno", "kill_process"} <= set(actions), " ".join(actions))


def _load(program: bytes) -> None:
    from .jail import processes, seccomp

    processes.forbid_new_privileges()
    seccomp.load(program)


def _landlock() -> Finding:
    from .jail import landlock

    try:
        abi = landlock.kernel_abi()
    except OSError as error:
        return Finding(False, os.strerror(error.errno or 0))
    return Finding(
        abi > 0, f"ABI {abi}" if abi else "the kernel lacks Landlock, or does not enable it"
    )


def _landlock_scopes() -> Finding:
    from .jail import landlock

    try:
        abi = landlock.kernel_abi()
    except OSError as error:
        return Finding(False, os.strerror(error.errno or 0))
    return Finding(abi >= landlock.SCOPES, f"ABI {abi}; scopes need ABI {landlock.SCOPES}")


def _uids() -> Finding:
    if os.geteuid() != 0:
        return Finding(False, f"an ordinary user, uid {os.geteuid()}")
    from .jail import users

    return _tried(lambda: users.become(users.own_id(0)))


def _cgroup() -> Finding:
    from .host.cgroup_files import CgroupUnavailable, find

    found = find()
    if isinstance(found, CgroupUnavailable):
        return Finding(False, found.reason, found.remedy)
    for folder in set(found.folders):
        trial = Path(folder) / f"repl-env-doctor-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError as error:
            return Finding(False, f"version {found.version}, {folder}: {error.strerror}")
        trial.rmdir()
    return Finding(True, f"version {found.version}, {', '.join(found.folders)}")


def _proc_visibility() -> Finding:
    rows = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mounted = [row[3].split(",") for row in rows if (row[1], row[2]) == ("/proc", "proc")]
    if not mounted:
        return Finding(False, "/proc is not mounted")
    # The last one covers those before it.
    hidden = [option for option in mounted[-1] if option.startswith(("hidepid=", "subset="))]
    return Finding(not hidden, ", ".join(hidden) or "all processes")


_USER_NAMESPACES = (
    "Run as root, or allow them: `sysctl kernel.unprivileged_userns_clone=1` (Debian), "
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu 23.10 and later), "
    "`sysctl user.max_user_namespaces=10000`; under Docker also "
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`. The kernel "
    "forbids them in a chroot(2): enter the directory by pivot_root, as `systemd-nspawn` and "
    "`bwrap` do."
)
_NAMESPACES = "Needs a kernel built with this namespace, and user namespaces (above)."

_JAILED = ("jailed",)
_FILTERED = ("jailed", "confined")
_ALL = ("jailed", "confined", "process")

CHECKS: tuple[Check, ...] = (
    Check("Linux", _ALL, _system, "Sessions need Linux. Use it, or connect to a server."),
    Check("Python", _ALL, _python, "Needs CPython 3.11 or later."),
    Check("architecture", _ALL, _machine, "System calls are known for x86-64 and aarch64."),
    Check(
        "native library",
        _ALL,
        _native,
        "Install repl-env from a wheel for this machine, or from source.",
    ),
    Check("user namespace", _JAILED, _namespace("USER"), _USER_NAMESPACES),
    Check("pid namespace", _JAILED, _namespace("PID"), _NAMESPACES),
    Check("mount namespace", _JAILED, _namespace("NS"), _NAMESPACES),
    Check("network namespace", _JAILED, _namespace("NET"), _NAMESPACES),
    Check("ipc namespace", _JAILED, _namespace("IPC"), _NAMESPACES),
    Check("uts namespace", _JAILED, _namespace("UTS"), _NAMESPACES),
    Check("cgroup namespace", _JAILED, _namespace("CGROUP"), _NAMESPACES),
    Check(
        "mount_setattr",
        _JAILED,
        _mount_setattr,
        "Needs Linux 5.12 or later, and user namespaces (above).",
    ),
    Check(
        "own /proc",
        _JAILED,
        _fresh_proc,
        "Needs user namespaces (above). A container that masks parts of /proc forbids a fresh one: "
        "run it with `--security-opt systempaths=unconfined`.",
    ),
    Check("seccomp filter", _FILTERED, _seccomp, "Needs a kernel with CONFIG_SECCOMP_FILTER."),
    Check(
        "Landlock",
        ("confined",),
        _landlock,
        "Needs Linux 5.13 or later with `landlock` in the boot parameter `lsm=`, and in a "
        "container a seccomp profile that allows its system calls.",
    ),
    Check(
        "Landlock scopes",
        (),
        _landlock_scopes,
        "Needs Linux 6.12 or later. Until then code of tier confined that shares this user's uid "
        "can signal this user's processes.",
    ),
    Check(
        "uid per session",
        (),
        _uids,
        "Run as root with CAP_SETUID, CAP_SETGID and CAP_CHOWN. Until then code of tier confined "
        "shares this user's uid: it can chmod and stat this user's files.",
    ),
    Check(
        "cgroup",
        (),
        _cgroup,
        "Delegate one (`systemd-run --user --scope -p Delegate=yes ...`) or run as root; until "
        "then rlimits and a watchdog hold the limits.",
    ),
    Check(
        "/proc visibility",
        (),
        _proc_visibility,
        "Until then the watchdog cannot see processes of other users, and the layers of tier "
        "confined cannot be verified for an ordinary user. Mount /proc without hidepid and subset, "
        "or add this user to the group of its gid= option.",
    ),
)

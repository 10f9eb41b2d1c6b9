"""Remedies for an operator when a step of the jail fails: rows of step, errno and remedy.

Covers: refusals on real systems. Does not cover: any step itself; a failure without a row is
reported without a remedy.
"""

from __future__ import annotations

from errno import EAGAIN, EINVAL, EMFILE, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM

from ..errors import IsolationError

_NAMESPACES = (
    "Allow user namespaces (`sysctl -w user.max_user_namespaces=10000`, on Ubuntu also "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`), or run as root with "
    "CAP_SYS_ADMIN; in a container both are its engine's to allow"
)

_FEW_IDS = (
    "The user namespace of this process has too few user ids (`cat /proc/self/uid_map`), or the "
    "process lacks CAP_SETUID and CAP_SETGID: map a whole range, as "
    "`unshare --map-auto --map-root-user` and `podman run --userns=auto` do from /etc/subuid and "
    "/etc/subgid, or run outside of that namespace as an ordinary user"
)

# (step, errno or None for every other): remedy
_REMEDIES: dict[tuple[str, int | None], str] = {
    # clone(2): ENOSPC is a limit of namespaces, EAGAIN one of processes.
    ("namespaces", ENOSPC): (
        "No disk is full: the kernel reports a limit of namespaces in these words. Raise the limit "
        "on the host: `sysctl -w user.max_user_namespaces=10000`, and its neighbours "
        "user.max_pid_namespaces and so on"
    ),
    ("namespaces", EMFILE): "Raise the limit of open files (ulimit -n)",
    ("namespaces", EAGAIN): "Raise the limit of processes: RLIMIT_NPROC, pids.max of the cgroup",
    ("namespaces", None): _NAMESPACES,
    # user_namespaces(7): the writer of the map needs the ids, and the right to give them away.
    ("id maps", EPERM): _FEW_IDS,
    ("id maps", None): (
        "Give the container the whole range of ids (no user namespace of its own) and CAP_SETUID "
        "and CAP_SETGID, or run as an ordinary user"
    ),
    # cgroup.procs(7): ENODEV where the cgroup was removed, EACCES where it is not the host's.
    ("cgroup", None): (
        "Leave the folders repl-env-* of the cgroup hierarchies to the process that made them, or "
        "make the sandbox with cgroup='off'"
    ),
    # pthread_atfork(3): forks of a template may start threads that the template itself lacks.
    ("single thread", None): (
        "Leave out of preload the module whose library starts a thread in each process that is "
        "forked"
    ),
    # mount_setattr(2) is of Linux 5.12.
    ("root", ENOSYS): "Use Linux 5.12 or newer",
    # mount(2): a moved or bound path must be a mount, which the root of a chroot(2) is not.
    ("root", EINVAL): (
        "Enter the root directory by pivot_root, as systemd-nspawn and bwrap do, and not by chroot"
    ),
    ("root", None): (
        "Allow mounts in user namespaces "
        "(`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`), or run as root with "
        "CAP_SYS_ADMIN"
    ),
    # mount_too_revealing() in fs/namespace.c: container engines cover parts of /proc.
    ("proc", None): (
        "Run the container with an uncovered /proc: --security-opt systempaths=unconfined in "
        "Docker, --security-opt unmask=ALL in Podman, procMount: Unmasked in Kubernetes"
    ),
    # The kernel has it, and a layer in between refuses it: the filter of an old container engine.
    ("Landlock", None): (
        "Let the container's system-call filter pass landlock_create_ruleset, landlock_add_rule "
        "and landlock_restrict_self (Docker 23 and Podman 4.1 do)"
    ),
    # landlock_create_ruleset(2): built without, or switched off at boot.
    ("Landlock", ENOSYS): (
        "Use Linux 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK; in a container whose kernel "
        "has none, as gVisor's, per_session=True"
    ),
    ("Landlock", EOPNOTSUPP): "Boot with landlock in the parameter lsm=",
    # Tier confined, as root: each session is a user of its own, without a mount view.
    # chown(2): the user namespace does not map the uid of the session.
    ("folder", EINVAL): _FEW_IDS,
    ("folder", None): (
        "Let the host's directory for temporary files (TMPDIR) be writable, and give a root that "
        "starts sandboxes CAP_CHOWN; or run as an ordinary user"
    ),
    ("code user", None): (
        "Give the container CAP_SETUID and CAP_SETGID and the whole range of ids, or run it as an "
        "ordinary user: code is never run as root"
    ),
    ("interpreter", None): (
        "Use an interpreter and a place of this package that every user may read (not below /root "
        "or another closed home), or run as an ordinary user"
    ),
    ("seccomp", None): "Use a kernel with CONFIG_SECCOMP_FILTER",
    # proc(5): hidepid and subset hide the files by which the host measures a session.
    ("probe", None): (
        "Mount /proc so that this user sees its own processes (without hidepid and subset)"
    ),
}


def known(step: str) -> str:
    """Return the remedy if `step` fails, whatever the errno; "" if none is known."""
    return _REMEDIES.get((step, None), "")


def step_error(step: str, error: OSError, tier: str = "jailed") -> IsolationError:
    """Return the error for a `step` of `tier` that failed with `error`, with its remedy."""
    remedy = _REMEDIES.get((step, error.errno)) or known(step)
    return IsolationError(tier, step, str(error), remedy)

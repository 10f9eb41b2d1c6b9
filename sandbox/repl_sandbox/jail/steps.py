"""A step of a recipe, how steps are taken, what a step does, and what to do when one fails."""

from __future__ import annotations

import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EACCES, EAGAIN, EINVAL, EMFILE, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, EPIPE
from itertools import groupby
from typing import Final, NamedTuple

from ..errors import IsolationError
from ..native.libc import call
from ..native.library import Address, Rows, StepError, SyscallBatch
from . import (
    fork_notifications,
    landlock,
    mounts,
    processes,
    reserved_descriptors,
    session_directory,
    slots,
    users,
)

# Remedies for an operator when a step of the jail fails: rows of step, errno and remedy.
#
# Covers: refusals on real systems. Does not cover: any step itself; a failure without a row is
# reported without a remedy.

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


# Settings of one session's jail, which the steps of a recipe read.


class ForkLimit(NamedTuple):
    """Admission of forks by another process, and the maximum number of processes of a session."""

    limiter: socket.socket
    filter: bytes  # from fork_notifications.program
    limit: int


@dataclass(slots=True)
class Jail:
    """Settings of one session's jail, and findings of its worker."""

    slot: int | None  # number of the session's own uids; None: the host may not assign any
    workspace: int  # bytes
    rlimits: list[tuple[int, tuple[int, int]]]  # from rlimits.plan
    last_capability: int
    final_filter: bytes  # closes the calls that only the template needs
    files: landlock.Plan
    tier: str = "jailed"
    folder: str = ""  # the session's own directory; "" where it has private mounts
    interpreter: Sequence[str] = ()  # paths that code must be able to read
    covered: Mapping[str, str] = field(default_factory=dict)  # from mounts.covered
    # Number of cgroups to join; 0 if the session is born into its cgroup; None without a cgroup.
    groups: int | None = None
    snapshots: int = -1  # number of snapshots besides the current one; -1: none at all
    shared: int = 0  # address of the page that init and worker share; 0: there is none
    descriptors: set[int] = field(default_factory=set)  # those that the contained process keeps
    findings: dict[str, int] = field(
        default_factory=dict
    )  # the worker's measurements, before any code
    home: str = ""  # the workspace of a branch; "" for the session's own
    forks: ForkLimit | None = None  # where the kernel does not limit the session's processes


# `Step`: one row of a recipe.


class Step(NamedTuple):
    """One row of a recipe: its system calls, or a function if it needs more."""

    name: str
    reason: str
    calls: Callable[[Jail], Rows] | None
    function: Callable[[Jail], None] | None = None


# `contain`: takes the steps of a recipe in order, and stops at the first that fails.
#
# Each step is a list of system calls, which `native/steps.c` performs in order, or a function of
# Python. A step that fails aborts the recipe, because a half-built jail must not run code.


def batch(jail: Jail, steps: Iterable[Step]) -> SyscallBatch:
    """Return the system calls of `steps`, all of which must be such steps."""
    rows = []
    for step in steps:
        if step.calls is None:
            raise ValueError(f"{step.name} is more than system calls")
        rows.append((step.name, step.calls(jail)))
    return SyscallBatch([("slots", (landlock.NOT_TRIED,)), *rows])


def contain(jail: Jail, steps: Iterable[Step]) -> None:
    """Apply every step in order, or raise IsolationError naming the one that failed."""
    for is_function, group in groupby(steps, lambda step: step.function is not None):
        if is_function:
            for step in group:
                _apply(jail, step)
        else:
            _perform(jail, batch(jail, group))


def _apply(jail: Jail, step: Step) -> None:
    assert step.function is not None
    try:
        step.function(jail)
    except OSError as error:
        raise step_error(step.name, error, jail.tier) from error


def _perform(jail: Jail, calls: SyscallBatch) -> None:
    try:
        calls.run()
    except StepError as error:
        raise step_error(error.step, error, jail.tier) from error
    note_findings(jail, calls)


def note_findings(jail: Jail, calls: SyscallBatch) -> None:
    """Store the findings of a batch that has run in the jail."""
    if landlock.was_tried(calls):
        jail.findings["landlock"] = jail.files.abi


# Steps of the recipes that depend on the session, or need more than system calls.

# Word sent between the processes of a new session to end a wait.
DONE: Final = bytes(4)
_ACCESS: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10  # uapi/linux/mman.h
_SHARED: Final = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED


# ── calls that depend on the session ────────────────────────────────────────────────────────────


def move_streams(jail: Jail) -> Rows:
    for stream, slot in ((1, slots.STDOUT), (2, slots.STDERR)):
        yield call("dup3", slot, stream, 0)


def move_descriptors(jail: Jail) -> Rows:
    moved = [
        (slots.CONTROL, reserved_descriptors.CONTROL),
        (slots.WORKER, reserved_descriptors.WORKER),
        (slots.CONTAINED, reserved_descriptors.CONTAINED),
        (slots.DONE, reserved_descriptors.DONE),
    ]
    if jail.snapshots >= 0:
        moved.append((slots.CHANNEL_INIT_END, reserved_descriptors.CHANNEL_INIT_END))
        moved.append((slots.CHANNEL_WORKER_END, reserved_descriptors.CHANNEL_WORKER_END))
    if jail.tier == "jailed":
        moved.append((slots.MAPPED, reserved_descriptors.MAPPED))
        # Otherwise a reader would wait for ever if the zygote were killed before writing.
        yield call("close", slots.WRITTEN)
    for slot, fd in moved:
        yield call("dup3", slot, fd, os.O_CLOEXEC)


def map_shared_page(jail: Jail) -> Rows:
    if jail.shared:
        yield call("mmap", jail.shared, mmap.PAGESIZE, _ACCESS, _SHARED, -1, 0)


def close_cgroup_view(jail: Jail) -> Rows:
    return () if jail.groups is None else users.close_view_rows()


def prefer_for_oom_kill(jail: Jail) -> Rows:
    return () if jail.groups is None else users.prefer_for_oom_kill_rows()


def empty_bounding_set_as_root(jail: Jail) -> Rows:
    # An ordinary user may not do this and does not need it: no_new_privs closes the same way.
    return () if jail.slot is None else users.empty_bounding_set_rows(jail.last_capability)


def become(inside: int) -> Callable[[Jail], Rows]:
    # An ordinary user's session has one uid only, and starts with it.
    return lambda jail: () if jail.slot is None else users.become_rows(inside)


def become_own(jail: Jail) -> Rows:
    return () if jail.slot is None else users.become_rows(users.own_id(jail.slot))


def act_as_code(jail: Jail) -> Rows:
    if jail.slot is None:
        return ()
    return users.act_as_rows(users.CODE_ID if jail.tier == "jailed" else users.own_id(jail.slot))


def uncover_mounts(jail: Jail) -> Rows:
    if jail.covered:
        # To make directories there, this process must have a uid of the session.
        yield from become(users.INIT_ID)(jail)
        yield from mounts.uncover_rows(jail.covered)


def restrict_files(jail: Jail) -> Rows:
    own = [(jail.folder, int(landlock.OWN))] if jail.folder else []
    return landlock.restrict_rows(jail.files, own)


def enter_workspace(jail: Jail) -> Rows:
    yield call("chdir", (jail.home or mounts.WORKSPACE).encode())


def wait_for_word(fd: int, reason: str) -> Rows:
    yield call("read", fd, Address(slots.WORD), len(DONE), least=len(DONE), reason=reason)
    yield call("close", fd)


def tell_worker(jail: Jail) -> Rows:
    # The very last call: a session must not fail after it has told its worker. Init learns of the
    # worker's own failure separately.
    yield call(
        "write", reserved_descriptors.DONE, DONE, len(DONE), least=len(DONE), tolerated=(EPIPE,)
    )


# ── steps that are more than system calls ───────────────────────────────────────────────────────


def make_directory(jail: Jail) -> None:
    session_directory.make(jail.folder, None if jail.slot is None else users.own_id(jail.slot))


def enter_directory(jail: Jail) -> None:
    home = jail.home or f"{jail.folder}/{session_directory.WORKSPACE}"
    temporary = f"{os.path.dirname(home)}/{session_directory.TEMPORARY}"
    os.environ.update(
        HOME=home,
        TMPDIR=temporary,
        MPLCONFIGDIR=f"{temporary}/matplotlib",
        XDG_CACHE_HOME=f"{temporary}/cache",
        # git would end at a file of the host's that it sees and cannot read, and take a repository
        # above the session's files for theirs.
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CEILING_DIRECTORIES=jail.folder,
    )
    if jail.tier != "process":
        os.environ["REPL_SESSION_TMP"] = temporary  # native/interposed.h
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # the template's
    # Code of an earlier worker may have removed them, or replaced them by links.
    for path in (temporary, home):
        _enter_below(jail.folder, path.removeprefix(f"{jail.folder}/").split("/"))


def _enter_below(folder: str, names: list[str]) -> None:
    """Change to directory `names` below `folder`, made where it is missing."""
    os.chdir(folder)
    for name in names:
        with suppress(FileExistsError):
            os.mkdir(name)
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchdir(fd)
        finally:
            os.close(fd)


def have_one_thread(jail: Jail) -> None:
    if processes.thread_count() != 1:
        raise OSError(EINVAL, os.strerror(EINVAL))


def read_interpreter(jail: Jail) -> None:
    for path in jail.interpreter:
        if not os.access(path, os.R_OK | os.X_OK):
            raise OSError(EACCES, f"{path} cannot be read by uid {os.getuid()}")


def note_privileges(jail: Jail) -> None:
    jail.findings["no_new_privs"] = processes.gains_no_privileges()


def limit_forks(jail: Jail) -> None:
    # Where the kernel cannot make forks wait, the watchdog limits them.
    if jail.forks is None:
        return
    limiter, filter_, limit = jail.forks
    try:
        listener = fork_notifications.load(filter_)
    except OSError:
        return
    jail.findings["forks"] = 1
    with suppress(OSError):  # the zygote has ended, and the session is about to
        fork_notifications.introduce(listener, limiter, os.getppid(), limit)
    limiter.close()

"""The tiers as ordered lists: of a session's init, of its view, and of each worker.

All tiers are made by the same code, of fewer or more steps. The order is the security property.
Every step raises when it fails; there is no half-built jail to fall back to.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EACCES
from signal import SIGTERM
from typing import Final, NamedTuple, TypeAlias

from . import (
    capabilities,
    folders,
    fork_notices,
    grants,
    landlock,
    membership,
    mounts,
    namespaces,
    processes,
    remedies,
    rlimits,
    seccomp,
    users,
)


class ForkLimit(NamedTuple):
    """By which process forks are admitted, and how many processes a session may have."""

    limiter: socket.socket
    filter: bytes  # as fork_notices.program makes it
    most: int


@dataclass(slots=True)
class Jail:
    """What the steps need to know of one session."""

    slot: int | None  # number of the session's own uids; None: the host may not assign any
    workspace: int  # bytes
    rlimits: list[tuple[int, tuple[int, int]]]  # as rlimits.plan makes them
    last_capability: int
    seal: bytes  # the filter that closes what the template still needs
    files: landlock.Plan
    tier: str = "jailed"
    folder: str = ""  # the session's own directory; "" where it has private mounts
    interpreter: Sequence[str] = ()  # paths that code must be able to read
    mapped: int = -1  # a pipe that brings one byte for each process that waits for the id maps
    covered: Mapping[str, str] = field(default_factory=dict)  # as mounts.covered has it
    contained: int = -1  # a pipe that brings a byte when init has done all its steps
    # What the session's group is joined by: descriptors; none if it is born there; None: no group.
    groups: tuple[int, ...] | None = None
    states: int = -1  # how many a session keeps besides the current one; -1: not even that
    kept: set[int] = field(default_factory=set)  # descriptors of the process that is contained
    held: dict[str, int] = field(default_factory=dict)  # what the worker found, before any code
    home: str = ""  # the workspace of a branch; "" for the session's own
    forks: ForkLimit | None = None  # where nothing of the kernel's bounds the session's processes


Step: TypeAlias = tuple[str, Callable[[Jail], None]]

# What is said between the processes of a new session when one need wait no longer: no errno.
DONE: Final = bytes(4)


def _join_group(jail: Jail) -> None:
    if jail.groups is not None:
        membership.join(jail.groups)


def close_group_view(jail: Jail) -> None:
    """Where it has a group, see what is below that alone."""
    if jail.groups is not None:
        membership.close_view()


def be_first_to_go(jail: Jail) -> None:
    """Where it has a group."""
    if jail.groups is not None:
        membership.be_first_to_go()


def mount_private(jail: Jail) -> None:
    """The session's own places, as large as it may have them."""
    mounts.mount_private(jail.workspace, users.CODE_ID)


def empty_bounding_set(jail: Jail) -> None:
    """All of it."""
    capabilities.empty_bounding_set(jail.last_capability)


def limit_resources(jail: Jail) -> None:
    """As the session's limits come to."""
    rlimits.apply(jail.rlimits)


def load_filter(jail: Jail) -> None:
    """What the template's own filter leaves open."""
    seccomp.load(jail.seal)


def _become_code(jail: Jail) -> None:
    # An ordinary user's session has one uid only, and starts with it.
    if jail.slot is not None:
        users.become(users.own_id(jail.slot))


def _act_as_code(jail: Jail) -> None:
    if jail.slot is not None:
        users.act_as(users.CODE_ID if jail.tier == "jailed" else users.own_id(jail.slot))


def keep_descriptors(jail: Jail) -> None:
    """Close all others."""
    processes.keep_descriptors(jail.kept)


def wait_for_maps(jail: Jail) -> None:
    """Wait until the zygote has written the id maps, and says so by a word of zeros."""
    # End of file: it could not, and has told the host why.
    if os.read(jail.mapped, len(DONE)) != DONE:
        raise OSError(0, "they were not written")
    os.close(jail.mapped)


def wait_for_init(jail: Jail) -> None:
    """Wait until init has taken all its steps, and says so by a word of zeros."""
    if os.read(jail.contained, len(DONE)) != DONE:
        os.read(jail.contained, 1)  # it has failed, and ends when it has told the host in what
        raise OSError(0, "it failed")
    os.close(jail.contained)


def uncover(jail: Jail) -> None:
    """Show what the private places hide."""
    if jail.covered:
        # To make directories there, this process must be somebody in the session.
        if jail.slot is not None:
            users.become(users.INIT_ID)
        mounts.uncover(jail.covered)


# In init before it forks, so that the first worker is born into the group and nothing that the
# session ever touches is charged to the host's.
BIRTH: Sequence[Step] = (("cgroup", _join_group),)


def restrict_files(jail: Jail) -> None:
    """By Landlock, where the kernel has it."""
    own = [(jail.folder, int(grants.OWN))] if jail.folder else []
    if landlock.restrict(jail.files, own):
        jail.held["landlock"] = jail.files.abi


def _make_folder(jail: Jail) -> None:
    folders.make(jail.folder, None if jail.slot is None else users.own_id(jail.slot))


def enter_workspace(jail: Jail) -> None:
    """Be in it."""
    if jail.home:
        os.environ["HOME"] = jail.home
    os.chdir(jail.home or mounts.WORKSPACE)


def _enter_folder(jail: Jail) -> None:
    os.environ["HOME"] = jail.home or f"{jail.folder}/{folders.WORKSPACE}"
    os.environ["TMPDIR"] = f"{jail.folder}/{folders.TEMPORARY}"
    os.environ["MPLCONFIGDIR"] = f"{jail.folder}/{folders.TEMPORARY}/matplotlib"
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # the template's
    # Code of an earlier generation may have removed them.
    for name in ("HOME", "TMPDIR"):
        os.makedirs(os.environ[name], exist_ok=True)
    os.chdir(os.environ["HOME"])


def _read_interpreter(jail: Jail) -> None:
    for path in jail.interpreter:
        if not os.access(path, os.R_OK | os.X_OK):
            raise OSError(EACCES, f"{path} cannot be read by uid {os.getuid()}")


def _empty_bounding_set_as_root(jail: Jail) -> None:
    # To an ordinary user it is not given, and says nothing: no_new_privs closes what it bounds.
    if jail.slot is not None:
        capabilities.empty_bounding_set(jail.last_capability)


def _limit_forks(jail: Jail) -> None:
    """By who admits them; where the kernel cannot have them wait, the watchdog is what there is."""
    if jail.forks is None:
        return
    limiter, filter_, most = jail.forks
    try:
        listener = fork_notices.load(filter_)
    except OSError:
        return
    jail.held["forks"] = 1
    with suppress(OSError):  # the zygote is gone, and the session about to end
        fork_notices.introduce(listener, limiter, os.getppid(), most)
    limiter.close()


def _limit_forks_of_anybody(jail: Jail) -> None:
    # An ordinary user may load filters only into what gains no privileges any more.
    if jail.forks is not None and os.geteuid() != 0:
        processes.forbid_new_privileges()
    _limit_forks(jail)


# In init, pid 1 of the new namespaces, with every capability in them and none outside. As data, for
# where it can, init makes these calls without a line of Python (`quiet_init`).
INIT: Sequence[Step] = (
    # Process groups reach across pid namespaces, and an ordinary user's sessions have one uid: a
    # signal to "my group" would meet the template and all of them.
    ("process group", processes.LEAVE_GROUP),
    ("descriptors", keep_descriptors),
    # The maps are written by the zygote meanwhile; uids mean nothing before.
    ("id maps", wait_for_maps),
    ("init user", users.BECOME_INIT),
    # After the last change of credentials, which would clear both.
    ("parent death signal", processes.DIE_WITH_PARENT),
    ("memory access", processes.HIDE_MEMORY),
)

# In the first worker, which is in init's namespaces and still has its capabilities there. It, and
# not init, because what a process touches after a fork is copied, and the worker will need it.
VIEW: Sequence[Step] = (
    ("hostname", namespaces.SET_HOSTNAME),
    ("proc", mounts.MOUNT_PROC),
    ("id maps", wait_for_maps),
    ("private mounts", mount_private),
    ("covered mounts", uncover),
)


# In each worker, before any code of the session runs.
WORKER: Sequence[Step] = (
    # Away from init's: a signal of the code to its group is not for init.
    ("process group", processes.LEAVE_GROUP),
    ("descriptors", keep_descriptors),
    # Most steps hold the thread that takes them, and a library may start one where it is forked.
    ("single thread", processes.HAVE_ONE_THREAD),
    ("workspace", enter_workspace),
    # With a group, clone makes no cgroup namespace: it would begin at the template's group.
    ("cgroup namespace", close_group_view),
    # While it still may.
    ("bounding set", empty_bounding_set),
    ("memory kill", be_first_to_go),
    ("resource limits", limit_resources),
    ("code user", users.BECOME_CODE),
    ("capabilities", capabilities.DROP_ALL),
    ("no new privileges", processes.FORBID_NEW_PRIVILEGES),
    ("memory access", processes.HIDE_MEMORY),
    # All that it names is mounted by now, and it forbids to mount more.
    ("Landlock", restrict_files),
    # Last: it forbids what the steps above need.
    ("seccomp", load_filter),
)


def _note_privileges(jail: Jail) -> None:
    """For kernels whose /proc does not say it."""
    jail.held["no_new_privs"] = processes.gains_no_privileges()


# Without namespaces init is one process among the host's. What it would get from a pid namespace it
# does itself: adopt whatever the session leaves, and end it. It keeps the host's user, whose right
# it is to end processes of others and to remove what they leave.
PROCESS_INIT: Sequence[Step] = (
    ("process group", processes.LEAVE_GROUP),
    ("descriptors", keep_descriptors),
    ("orphans", lambda jail: processes.adopt_orphans()),
    # Not by SIGKILL: it has to end the others first.
    ("parent death signal", lambda jail: processes.die_with_parent(SIGTERM)),
)

CONFINED_INIT: Sequence[Step] = (
    *PROCESS_INIT,
    ("memory access", processes.HIDE_MEMORY),
)

FOLDER: Sequence[Step] = (("folder", _make_folder),)

CONFINED_WORKER: Sequence[Step] = (
    ("process group", processes.LEAVE_GROUP),
    ("descriptors", keep_descriptors),
    ("single thread", lambda jail: processes.have_one_thread()),
    ("bounding set", _empty_bounding_set_as_root),
    ("resource limits", limit_resources),
    ("code user", _become_code),
    # As who will need them.
    ("interpreter", _read_interpreter),
    ("workspace", _enter_folder),
    ("capabilities", capabilities.DROP_ALL),
    ("no new privileges", processes.FORBID_NEW_PRIVILEGES),
    ("parent death signal", lambda jail: processes.die_with_parent()),
    ("memory access", processes.HIDE_MEMORY),
    ("fork limit", _limit_forks),
    ("Landlock", restrict_files),
    # Last: it forbids what the steps above need.
    ("seccomp", load_filter),
)

_ALONE: Mapping[str, Sequence[Step]] = {
    "resource limits": (("resource limits", lambda jail: rlimits.apply_alone(jail.rlimits)),),
    # Whatever init does not adopt ends with the container.
    "orphans": (("orphans", lambda jail: processes.adopt_orphans(needed=False)),),
    "capabilities": (("capabilities", capabilities.drop_alone),),
    "no new privileges": (
        ("no new privileges", processes.FORBID_NEW_PRIVILEGES),
        ("no new privileges", _note_privileges),
    ),
}


def _alone(steps: Sequence[Step]) -> Sequence[Step]:
    """`steps` as a kernel takes them that only one session has."""
    return tuple(step for each in steps for step in _ALONE.get(each[0], (each,)))


ALONE_WORKER: Sequence[Step] = _alone(CONFINED_WORKER)

PROCESS_WORKER: Sequence[Step] = (
    ("process group", processes.LEAVE_GROUP),
    ("descriptors", keep_descriptors),
    ("resource limits", limit_resources),
    ("workspace", _enter_folder),
    ("parent death signal", lambda jail: processes.die_with_parent()),
    ("fork limit", _limit_forks_of_anybody),
)

# In a process of init's code that opens files of the session for the host.
CLERK: Sequence[Step] = (
    ("descriptors", keep_descriptors),
    # So that files are the code's, and what it may not do cannot be done for it by mistake.
    ("file user", _act_as_code),
    ("capabilities", capabilities.DROP_ALL),
    # After the last change of credentials, which would clear both.
    ("parent death signal", lambda jail: processes.die_with_parent()),
    ("memory access", processes.HIDE_MEMORY),
)

PROCESS_CLERK: Sequence[Step] = (
    ("descriptors", keep_descriptors),
    ("parent death signal", lambda jail: processes.die_with_parent()),
)


class Recipe(NamedTuple):
    """How a tier is made: steps of init, of the first worker, of each later one, of each clerk."""

    init: Sequence[Step]
    first_worker: Sequence[Step]
    worker: Sequence[Step]
    clerk: Sequence[Step]


# In the first worker last: not before init has closed itself off may code run beside it. It does so
# meanwhile, and is waited for at the very end.
TOGETHER: Sequence[Step] = (("init", wait_for_init),)

# From the strongest to the weakest.
RECIPES: Final[Mapping[str, Recipe]] = {
    "jailed": Recipe(INIT, (*VIEW, *WORKER, *TOGETHER), WORKER, CLERK),
    "confined": Recipe(
        CONFINED_INIT, (*FOLDER, *CONFINED_WORKER, *TOGETHER), CONFINED_WORKER, CLERK
    ),
    # In a container that no other session is in.
    "alone": Recipe(
        _alone(CONFINED_INIT), (*FOLDER, *ALONE_WORKER, *TOGETHER), ALONE_WORKER, _alone(CLERK)
    ),
    "process": Recipe(
        PROCESS_INIT, (*FOLDER, *PROCESS_WORKER, *TOGETHER), PROCESS_WORKER, PROCESS_CLERK
    ),
}


def contain(jail: Jail, steps: Sequence[Step]) -> None:
    """Apply every step in order, or raise IsolationError naming the one that failed."""
    for name, apply in steps:
        try:
            apply(jail)
        except OSError as error:
            raise remedies.failed(name, error, jail.tier) from error

"""The steps of the jail in their order, for each tier: of init, of workers and of file helpers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from errno import EINVAL, ENOSYS, EPERM
from signal import SIGTERM
from typing import Final, NamedTuple

from . import mounts, processes, reserved_descriptors, rlimits, seccomp, steps, users
from .steps import (
    Step,
    act_as_code,
    become_own,
    empty_bounding_set_as_root,
    enter_directory,
    have_one_thread,
    limit_forks,
    make_directory,
    note_privileges,
    read_interpreter,
)

# Steps of tier "jailed": of the spawn, of init, of the mount view, and of each worker.
#
# The order is the security property.

# In a session's first process before it forks the first worker, which inherits all of it.
SPAWN_STEPS: Sequence[Step] = (
    Step(
        "cgroup",
        "the first worker is born into the cgroup, which pays for all memory of the session",
        lambda jail: users.join_rows(jail.groups or 0),
    ),
    Step("streams", "output from here on belongs to the session", steps.move_streams),
    Step(
        "session descriptors",
        "the descriptors have the same numbers in each session",
        steps.move_descriptors,
    ),
    Step(
        "shared page",
        "only init and the worker share the snapshot table",
        steps.map_shared_page,
    ),
)

# In init, pid 1 of the new namespaces, with every capability in them and none outside.
INIT: Sequence[Step] = (
    Step(
        "process group",
        "process groups span pid namespaces, and all sessions of an ordinary user have one uid: "
        "a signal to init's group would reach the template and other sessions",
        lambda jail: processes.leave_group_rows(),
    ),
    Step(
        "descriptors",
        "descriptors of the template belong to the host",
        lambda jail: processes.keep_descriptors_rows(jail.descriptors),
    ),
    Step(
        "id maps",
        "uids mean nothing until the zygote has written the maps",
        lambda jail: steps.wait_for_word(
            reserved_descriptors.MAPPED, "the zygote did not write the id maps"
        ),
    ),
    Step(
        "init user",
        "init has a uid that only this session uses",
        steps.become(users.INIT_ID),
    ),
    # After the last change of credentials, which would clear both.
    Step(
        "parent death signal",
        "the session ends with the zygote",
        lambda jail: processes.die_with_parent_rows(),
    ),
    Step(
        "memory access",
        "the session's code must not read init's memory",
        lambda jail: processes.hide_memory_rows(),
    ),
)

# In the first worker, which is in init's namespaces and still has its capabilities there. Not in
# init, because pages touched after a fork are copied, and the worker will need these.
VIEW: Sequence[Step] = (
    Step("hostname", "the name would identify the host", lambda jail: users.set_hostname_rows()),
    Step(
        "proc",
        "the template's /proc shows the host's processes",
        lambda jail: mounts.mount_proc_rows(),
    ),
    Step(
        "id maps",
        "the private mounts belong to uids of the session",
        lambda jail: steps.wait_for_word(
            reserved_descriptors.MAPPED, "the zygote did not write the id maps"
        ),
    ),
    Step(
        "private mounts",
        "the session's own directories, limited in size",
        lambda jail: mounts.mount_private_rows(jail.workspace, users.CODE_ID),
    ),
    Step(
        "terminals",
        "the session's own, which no other process can open",
        lambda jail: mounts.mount_terminals_rows(users.CODE_ID),
    ),
    Step(
        "covered mounts",
        "mounts below a private mount become visible again",
        steps.uncover_mounts,
    ),
)

# In each worker, before any code of the session runs.
WORKER: Sequence[Step] = (
    Step(
        "process group",
        "a signal of the code to its process group must not reach init",
        lambda jail: processes.leave_group_rows(),
    ),
    Step(
        "descriptors",
        "the code must not use init's descriptors",
        lambda jail: processes.keep_descriptors_rows(jail.descriptors),
    ),
    Step(
        "single thread",
        "most steps restrict only the calling thread, and a library may start a thread in a fork",
        lambda jail: processes.have_one_thread_rows(),
    ),
    Step("workspace", "code starts in the directory of its files", steps.enter_workspace),
    # With a cgroup, clone makes no cgroup namespace: it would begin at the template's cgroup.
    Step(
        "cgroup namespace",
        "cgroups above the session's belong to the host",
        steps.close_cgroup_view,
    ),
    # Before the capability for it is dropped.
    Step(
        "bounding set",
        "no exec gains a capability",
        lambda jail: users.empty_bounding_set_rows(jail.last_capability),
    ),
    Step(
        "memory kill",
        "when memory runs out, the kernel kills the code before init",
        steps.prefer_for_oom_kill,
    ),
    Step(
        "resource limits",
        "the part of the session's limits that the kernel enforces for each process",
        lambda jail: rlimits.apply_rows(jail.rlimits),
    ),
    Step("code user", "code has another uid than init", steps.become(users.CODE_ID)),
    Step("capabilities", "code has no capability", lambda jail: users.drop_all_rows()),
    Step(
        "no new privileges",
        "no exec gains privileges, so that an ordinary user may load filters",
        lambda jail: processes.forbid_new_privileges_rows(),
    ),
    Step(
        "memory access",
        "processes of the same uid must not read the worker",
        lambda jail: processes.hide_memory_rows(),
    ),
    # All paths of its rules are mounted by now, and it forbids further mounts.
    Step(
        "Landlock",
        "limits files by path, TCP, and signals and sockets to other processes",
        steps.restrict_files,
    ),
    # Last: it forbids calls that the steps above need.
    Step(
        "seccomp",
        "refuses system calls that code does not need",
        lambda jail: seccomp.load_rows(jail.final_filter),
    ),
)

# Last step of the first worker: no code may run before init has restricted itself. Init does so at
# the same time, so the wait comes last.
WAIT_FOR_INIT: Sequence[Step] = (
    Step(
        "init",
        "no code runs before init has restricted itself",
        lambda jail: steps.wait_for_word(reserved_descriptors.CONTAINED, "init failed"),
    ),
)
# Last step of init.
TELL_WORKER: Sequence[Step] = (
    Step("worker", "the worker waits for the end of init's steps", steps.tell_worker),
)


# Steps of the tiers without namespaces: "confined", "alone" and "process"; and of file helpers.
#
# The order is the security property.

# Without namespaces init is one process among the host's. It replaces the work of a pid namespace:
# it adopts orphans of the session, and ends them. It keeps the host's user, which may end processes
# of other users and remove their files.
PROCESS_INIT: Sequence[Step] = (
    *INIT[:2],
    Step(
        "orphans",
        "init ends processes that the session leaves behind",
        lambda jail: processes.adopt_orphans_rows(),
    ),
    Step(
        "parent death signal",
        "the session ends with the zygote; SIGTERM, because init has to end the others first",
        lambda jail: processes.die_with_parent_rows(SIGTERM),
    ),
)

CONFINED_INIT: Sequence[Step] = (*PROCESS_INIT, INIT[-1])

FOLDER: Sequence[Step] = (Step("folder", "the session's own directory", None, make_directory),)

_OWN_GROUP, _OWN_DESCRIPTORS, *_ = WORKER
_LIMITS = next(step for step in WORKER if step.name == "resource limits")
_CAPABILITIES, _NO_NEW_PRIVILEGES, _HIDDEN, _LANDLOCK, _SECCOMP = WORKER[-5:]
_DIES_WITH_INIT = Step(
    "parent death signal",
    "a worker does not outlive its init",
    lambda jail: processes.die_with_parent_rows(),
)
_OWN_FOLDER = Step("workspace", "code starts in the directory of its files", None, enter_directory)

CONFINED_WORKER: Sequence[Step] = (
    _OWN_GROUP,
    _OWN_DESCRIPTORS,
    # The filter of a container may refuse unshare(2).
    Step("single thread", "as in tier jailed", None, have_one_thread),
    Step("bounding set", "no exec gains a capability", empty_bounding_set_as_root),
    _LIMITS,
    Step(
        "code user",
        "each session has a uid of its own if root started the sandbox",
        become_own,
    ),
    # With the uid that will read the files.
    Step(
        "interpreter",
        "the code's user must be able to read the interpreter",
        None,
        read_interpreter,
    ),
    _OWN_FOLDER,
    _CAPABILITIES,
    _NO_NEW_PRIVILEGES,
    _DIES_WITH_INIT,
    _HIDDEN,
    Step(
        "fork limit",
        "no rlimit or cgroup bounds the number of the session's processes",
        None,
        limit_forks,
    ),
    _LANDLOCK,
    # Last: it forbids calls that the steps above need.
    _SECCOMP,
)

# Errnos of a call that a kernel for only one session may lack.
_LACKS: Final = (EINVAL, ENOSYS, EPERM)
_ALONE: Mapping[str, Sequence[Step]] = {
    "resource limits": (
        _LIMITS._replace(calls=lambda jail: rlimits.apply_rows(jail.rlimits, alone=True)),
    ),
    "orphans": (
        Step(
            "orphans",
            "init ends processes that the session leaves behind; others end with the container",
            lambda jail: processes.adopt_orphans_rows(needed=False),
        ),
    ),
    "capabilities": (_CAPABILITIES._replace(calls=lambda jail: users.drop_all_rows(_LACKS)),),
    "no new privileges": (
        _NO_NEW_PRIVILEGES,
        Step(
            "no new privileges",
            "/proc of this kernel may not show the flag",
            None,
            note_privileges,
        ),
    ),
}


def _alone(steps: Sequence[Step]) -> Sequence[Step]:
    """Return `steps` for a kernel that serves only one session."""
    return tuple(step for each in steps for step in _ALONE.get(each.name, (each,)))


ALONE_INIT: Sequence[Step] = _alone(CONFINED_INIT)
ALONE_WORKER: Sequence[Step] = _alone(CONFINED_WORKER)

PROCESS_WORKER: Sequence[Step] = (
    _OWN_GROUP,
    _OWN_DESCRIPTORS,
    _LIMITS,
    _OWN_FOLDER,
    _DIES_WITH_INIT,
    # An ordinary user may load filters only after giving up new privileges.
    Step(
        "fork limit privileges",
        "the kernel requires it for the filter of the next step",
        lambda jail: (
            processes.forbid_new_privileges_rows()
            if jail.forks is not None and os.geteuid()
            else ()
        ),
    ),
    Step(
        "fork limit",
        "no rlimit or cgroup bounds the number of the session's processes",
        None,
        limit_forks,
    ),
)

# In a helper process of init that opens files of the session for the host.
FILE_HELPER: Sequence[Step] = (
    INIT[1],
    # No access exceeds the rights of the code's user by mistake.
    Step("file user", "files belong to the code's user", act_as_code),
    _CAPABILITIES,
    # After the last change of credentials, which would clear both.
    _DIES_WITH_INIT,
    _HIDDEN,
)

PROCESS_FILE_HELPER: Sequence[Step] = (INIT[1], _DIES_WITH_INIT)
ALONE_FILE_HELPER: Sequence[Step] = _alone(FILE_HELPER)


# `RECIPES`: the steps of each tier, for init, for workers and for file helpers.


class Recipe(NamedTuple):
    """Steps of a tier: of init, of the first worker, of each later worker, of each file helper."""

    init: Sequence[Step]
    first_worker: Sequence[Step]
    worker: Sequence[Step]
    file_helper: Sequence[Step]


# From the strongest to the weakest.
RECIPES: Final[Mapping[str, Recipe]] = {
    "jailed": Recipe((*INIT, *TELL_WORKER), (*VIEW, *WORKER, *WAIT_FOR_INIT), WORKER, FILE_HELPER),
    "confined": Recipe(
        (*CONFINED_INIT, *TELL_WORKER),
        (*FOLDER, *CONFINED_WORKER, *WAIT_FOR_INIT),
        CONFINED_WORKER,
        FILE_HELPER,
    ),
    # In a container that no other session is in.
    "alone": Recipe(
        (*ALONE_INIT, *TELL_WORKER),
        (*FOLDER, *ALONE_WORKER, *WAIT_FOR_INIT),
        ALONE_WORKER,
        ALONE_FILE_HELPER,
    ),
    "process": Recipe(
        (*PROCESS_INIT, *TELL_WORKER),
        (*FOLDER, *PROCESS_WORKER, *WAIT_FOR_INIT),
        PROCESS_WORKER,
        PROCESS_FILE_HELPER,
    ),
}

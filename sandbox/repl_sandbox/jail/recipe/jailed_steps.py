"""Steps of tier "jailed": of the spawn, of init, of the mount view, and of each worker.

The order is the security property.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import (
    capabilities,
    cgroup_join,
    mounts,
    namespaces,
    processes,
    reserved_descriptors,
    rlimits,
    users,
)
from ..seccomp import seccomp_filters
from . import step_functions
from .recipe_step import Step

# In a session's first process before it forks the first worker, which inherits all of it.
SPAWN_STEPS: Sequence[Step] = (
    Step(
        "cgroup",
        "the first worker is born into the cgroup, which pays for all memory of the session",
        lambda jail: cgroup_join.join_rows(jail.groups or 0),
    ),
    Step("streams", "output from here on belongs to the session", step_functions.move_streams),
    Step(
        "session descriptors",
        "the descriptors have the same numbers in each session",
        step_functions.move_descriptors,
    ),
    Step(
        "shared page",
        "only init and the worker share the snapshot table",
        step_functions.map_shared_page,
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
        lambda jail: step_functions.wait_for_word(
            reserved_descriptors.MAPPED, "the zygote did not write the id maps"
        ),
    ),
    Step(
        "init user",
        "init has a uid that only this session uses",
        step_functions.become(users.INIT_ID),
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
    Step(
        "hostname", "the name would identify the host", lambda jail: namespaces.set_hostname_rows()
    ),
    Step(
        "proc",
        "the template's /proc shows the host's processes",
        lambda jail: mounts.mount_proc_rows(),
    ),
    Step(
        "id maps",
        "the private mounts belong to uids of the session",
        lambda jail: step_functions.wait_for_word(
            reserved_descriptors.MAPPED, "the zygote did not write the id maps"
        ),
    ),
    Step(
        "private mounts",
        "the session's own directories, limited in size",
        lambda jail: mounts.mount_private_rows(jail.workspace, users.CODE_ID),
    ),
    Step(
        "covered mounts",
        "mounts below a private mount become visible again",
        step_functions.uncover_mounts,
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
    Step("workspace", "code starts in the directory of its files", step_functions.enter_workspace),
    # With a cgroup, clone makes no cgroup namespace: it would begin at the template's cgroup.
    Step(
        "cgroup namespace",
        "cgroups above the session's belong to the host",
        step_functions.close_cgroup_view,
    ),
    # Before the capability for it is dropped.
    Step(
        "bounding set",
        "no exec gains a capability",
        lambda jail: capabilities.empty_bounding_set_rows(jail.last_capability),
    ),
    Step(
        "memory kill",
        "when memory runs out, the kernel kills the code before init",
        step_functions.prefer_for_oom_kill,
    ),
    Step(
        "resource limits",
        "the part of the session's limits that the kernel enforces for each process",
        lambda jail: rlimits.apply_rows(jail.rlimits),
    ),
    Step("code user", "code has another uid than init", step_functions.become(users.CODE_ID)),
    Step("capabilities", "code has no capability", lambda jail: capabilities.drop_all_rows()),
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
        step_functions.restrict_files,
    ),
    # Last: it forbids calls that the steps above need.
    Step(
        "seccomp",
        "refuses system calls that code does not need",
        lambda jail: seccomp_filters.load_rows(jail.final_filter),
    ),
)

# Last step of the first worker: no code may run before init has restricted itself. Init does so at
# the same time, so the wait comes last.
WAIT_FOR_INIT: Sequence[Step] = (
    Step(
        "init",
        "no code runs before init has restricted itself",
        lambda jail: step_functions.wait_for_word(reserved_descriptors.CONTAINED, "init failed"),
    ),
)
# Last step of init.
TELL_WORKER: Sequence[Step] = (
    Step("worker", "the worker waits for the end of init's steps", step_functions.tell_worker),
)

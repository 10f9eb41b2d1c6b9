"""Recipes of the tiers: ordered steps of a session's spawn, its init, its view, and each worker.

Each step is a list of system calls, which `native/steps.c` performs in order, or a function of
Python. The order is the security property. The first step that fails aborts the recipe, because a
half-built jail must not run code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EINVAL, ENOSYS, EPERM
from itertools import groupby
from signal import SIGTERM
from typing import Final, NamedTuple

from ..native.steps import Rows, StepError, SyscallBatch
from . import (
    capabilities,
    cgroup_join,
    mounts,
    namespaces,
    processes,
    recipe_steps,
    remedies,
    reserved_descriptors,
    rlimits,
    users,
)
from .landlock import ruleset
from .seccomp import seccomp_filters
from .session_jail import Jail


class Step(NamedTuple):
    """One row of a recipe: its system calls, or a function if it needs more."""

    name: str
    reason: str
    calls: Callable[[Jail], Rows] | None
    function: Callable[[Jail], None] | None = None


# ── the recipes ─────────────────────────────────────────────────────────────────────────────────

# In a session's first process before it forks the first worker, which inherits all of it.
SPAWN_STEPS: Sequence[Step] = (
    Step(
        "cgroup",
        "the worker is born into the group, and nothing that the session touches is the host's",
        lambda jail: cgroup_join.join_rows(jail.groups or 0),
    ),
    Step("streams", "what is printed from here on is the session's", recipe_steps.move_streams),
    Step(
        "session descriptors",
        "their numbers are the same in each session",
        recipe_steps.move_descriptors,
    ),
    Step(
        "shared page",
        "init and worker share the table of copies with nobody else",
        recipe_steps.map_shared_page,
    ),
)

# In init, pid 1 of the new namespaces, with every capability in them and none outside.
INIT: Sequence[Step] = (
    Step(
        "process group",
        "groups reach across pid namespaces, and an ordinary user's sessions have one uid: a "
        "signal to `my group` would meet the template and all of them",
        lambda jail: processes.leave_group_rows(),
    ),
    Step(
        "descriptors",
        "those of the template are the host's",
        lambda jail: processes.keep_descriptors_rows(jail.kept),
    ),
    Step(
        "id maps",
        "the zygote writes them meanwhile; uids mean nothing before",
        lambda jail: recipe_steps.wait_for_word(
            reserved_descriptors.MAPPED, "they were not written"
        ),
    ),
    Step(
        "init user", "init acts as a user of the session alone", recipe_steps.become(users.INIT_ID)
    ),
    # After the last change of credentials, which would clear both.
    Step(
        "parent death signal",
        "the session ends with the zygote",
        lambda jail: processes.die_with_parent_rows(),
    ),
    Step("memory access", "code must not read init", lambda jail: processes.hide_memory_rows()),
)

# In the first worker, which is in init's namespaces and still has its capabilities there. Not in
# init, because pages touched after a fork are copied, and the worker will need these.
VIEW: Sequence[Step] = (
    Step("hostname", "it says who the host is", lambda jail: namespaces.set_hostname_rows()),
    Step(
        "proc", "the template's shows the host's processes", lambda jail: mounts.mount_proc_rows()
    ),
    Step(
        "id maps",
        "owners of the private mounts are ids of the session",
        lambda jail: recipe_steps.wait_for_word(
            reserved_descriptors.MAPPED, "they were not written"
        ),
    ),
    Step(
        "private mounts",
        "the session's own places, as large as it may have them",
        lambda jail: mounts.mount_private_rows(jail.workspace, users.CODE_ID),
    ),
    Step(
        "covered mounts", "what the private mounts hide is shown again", recipe_steps.uncover_mounts
    ),
)

# In each worker, before any code of the session runs.
WORKER: Sequence[Step] = (
    Step(
        "process group",
        "a signal of the code to its group is not for init",
        lambda jail: processes.leave_group_rows(),
    ),
    Step(
        "descriptors",
        "those of init are not the code's",
        lambda jail: processes.keep_descriptors_rows(jail.kept),
    ),
    Step(
        "single thread",
        "most steps hold the thread that takes them, and a library may start one in a fork",
        lambda jail: processes.have_one_thread_rows(),
    ),
    Step("workspace", "code begins where its files are", recipe_steps.enter_workspace),
    # With a cgroup, clone makes no cgroup namespace: it would begin at the template's cgroup.
    Step(
        "cgroup namespace",
        "groups above the session's are the host's",
        recipe_steps.close_cgroup_view,
    ),
    # Before the capability for it is dropped.
    Step(
        "bounding set",
        "no exec gains a capability",
        lambda jail: capabilities.empty_bounding_set_rows(jail.last_capability),
    ),
    Step("memory kill", "when memory runs out, code ends before init", recipe_steps.be_first_to_go),
    Step(
        "resource limits",
        "what the session's limits come to",
        lambda jail: rlimits.apply_rows(jail.rlimits),
    ),
    Step("code user", "code is not init's user", recipe_steps.become(users.CODE_ID)),
    Step("capabilities", "code has none", lambda jail: capabilities.drop_all_rows()),
    Step(
        "no new privileges",
        "no exec gains anything; filters may be loaded",
        lambda jail: processes.forbid_new_privileges_rows(),
    ),
    Step(
        "memory access",
        "processes of the same uid must not read the worker",
        lambda jail: processes.hide_memory_rows(),
    ),
    # All paths of its rules are mounted by now, and it forbids further mounts.
    Step(
        "Landlock", "files by path, TCP, signals and sockets to others", recipe_steps.restrict_files
    ),
    # Last: it forbids calls that the steps above need.
    Step(
        "seccomp",
        "system calls that code does not need",
        lambda jail: seccomp_filters.load_rows(jail.final_filter),
    ),
)


# Without namespaces init is one process among the host's. It replaces the work of a pid namespace:
# it adopts orphans of the session, and ends them. It keeps the host's user, which may end processes
# of other users and remove their files.
PROCESS_INIT: Sequence[Step] = (
    *INIT[:2],
    Step(
        "orphans",
        "init ends what the session leaves",
        lambda jail: processes.adopt_orphans_rows(),
    ),
    Step(
        "parent death signal",
        "the session ends with the zygote; not by SIGKILL, for init has to end the others first",
        lambda jail: processes.die_with_parent_rows(SIGTERM),
    ),
)

CONFINED_INIT: Sequence[Step] = (*PROCESS_INIT, INIT[-1])

FOLDER: Sequence[Step] = (
    Step("folder", "the session's own directory", None, recipe_steps.make_directory),
)

_OWN_GROUP, _OWN_DESCRIPTORS, *_ = WORKER
_LIMITS = next(step for step in WORKER if step.name == "resource limits")
_CAPABILITIES, _NO_NEW_PRIVILEGES, _HIDDEN, _LANDLOCK, _SECCOMP = WORKER[-5:]
_DIES_WITH_INIT = Step(
    "parent death signal",
    "a worker does not outlive its init",
    lambda jail: processes.die_with_parent_rows(),
)
_OWN_FOLDER = Step(
    "workspace", "code begins where its files are", None, recipe_steps.enter_directory
)

CONFINED_WORKER: Sequence[Step] = (
    _OWN_GROUP,
    _OWN_DESCRIPTORS,
    # The filter of a container may refuse unshare(2).
    Step("single thread", "as in tier jailed", None, recipe_steps.have_one_thread),
    Step("bounding set", "no exec gains a capability", recipe_steps.empty_bounding_set_as_root),
    _LIMITS,
    Step(
        "code user",
        "each session is a user of its own, where root can give one",
        recipe_steps.become_own,
    ),
    # With the uid that will need them.
    Step(
        "interpreter",
        "the code's user must be able to read it",
        None,
        recipe_steps.read_interpreter,
    ),
    _OWN_FOLDER,
    _CAPABILITIES,
    _NO_NEW_PRIVILEGES,
    _DIES_WITH_INIT,
    _HIDDEN,
    Step(
        "fork limit",
        "nothing of the kernel's bounds the session's processes",
        None,
        recipe_steps.limit_forks,
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
            "init ends what the session leaves; the rest ends with the container",
            lambda jail: processes.adopt_orphans_rows(needed=False),
        ),
    ),
    "capabilities": (
        _CAPABILITIES._replace(calls=lambda jail: capabilities.drop_all_rows(_LACKS)),
    ),
    "no new privileges": (
        _NO_NEW_PRIVILEGES,
        Step("no new privileges", "its /proc need not say it", None, recipe_steps.note_privileges),
    ),
}


def _alone(steps: Sequence[Step]) -> Sequence[Step]:
    """Return `steps` for a kernel that serves only one session."""
    return tuple(step for each in steps for step in _ALONE.get(each.name, (each,)))


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
        "the filter of the next step asks for it",
        lambda jail: (
            processes.forbid_new_privileges_rows()
            if jail.forks is not None and os.geteuid()
            else ()
        ),
    ),
    Step(
        "fork limit",
        "nothing of the kernel's bounds the session's processes",
        None,
        recipe_steps.limit_forks,
    ),
)

# In a helper process of init that opens files of the session for the host.
FILE_HELPER: Sequence[Step] = (
    INIT[1],
    # Files belong to the code's user, and no access exceeds that user's rights by mistake.
    Step("file user", "files are the code's", recipe_steps.act_as_code),
    _CAPABILITIES,
    # After the last change of credentials, which would clear both.
    _DIES_WITH_INIT,
    _HIDDEN,
)

PROCESS_FILE_HELPER: Sequence[Step] = (INIT[1], _DIES_WITH_INIT)

# Last step of the first worker: no code may run before init has contained itself. Init does so at
# the same time, so the wait comes at the very end.
WAIT_FOR_INIT: Sequence[Step] = (
    Step(
        "init",
        "no code runs beside an init that is not closed off",
        lambda jail: recipe_steps.wait_for_word(reserved_descriptors.CONTAINED, "it failed"),
    ),
)
# Last step of init.
TELL_WORKER: Sequence[Step] = (
    Step("worker", "it waits for the end of init's steps", recipe_steps.tell_worker),
)


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
        (*_alone(CONFINED_INIT), *TELL_WORKER),
        (*FOLDER, *ALONE_WORKER, *WAIT_FOR_INIT),
        ALONE_WORKER,
        _alone(FILE_HELPER),
    ),
    "process": Recipe(
        (*PROCESS_INIT, *TELL_WORKER),
        (*FOLDER, *PROCESS_WORKER, *WAIT_FOR_INIT),
        PROCESS_WORKER,
        PROCESS_FILE_HELPER,
    ),
}


# ── how they are taken ──────────────────────────────────────────────────────────────────────────


def batch(jail: Jail, steps: Iterable[Step]) -> SyscallBatch:
    """Return the system calls of `steps`, all of which must be such steps."""
    rows = []
    for step in steps:
        if step.calls is None:
            raise ValueError(f"{step.name} is more than system calls")
        rows.append((step.name, step.calls(jail)))
    return SyscallBatch([("slots", (ruleset.NOT_TRIED,)), *rows])


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
        raise remedies.step_error(step.name, error, jail.tier) from error


def _perform(jail: Jail, calls: SyscallBatch) -> None:
    try:
        calls.run()
    except StepError as error:
        raise remedies.step_error(error.step, error, jail.tier) from error
    note_findings(jail, calls)


def note_findings(jail: Jail, calls: SyscallBatch) -> None:
    """Store the findings of a batch that has run in the jail."""
    if ruleset.was_tried(calls):
        jail.held["landlock"] = jail.files.abi

"""Steps of the tiers without namespaces: "confined", "alone" and "process"; and of file helpers.

The order is the security property.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from errno import EINVAL, ENOSYS, EPERM
from signal import SIGTERM
from typing import Final

from .. import capabilities, processes, rlimits
from . import step_functions
from .jailed_steps import INIT, WORKER
from .recipe_step import Step

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

FOLDER: Sequence[Step] = (
    Step("folder", "the session's own directory", None, step_functions.make_directory),
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
    "workspace", "code starts in the directory of its files", None, step_functions.enter_directory
)

CONFINED_WORKER: Sequence[Step] = (
    _OWN_GROUP,
    _OWN_DESCRIPTORS,
    # The filter of a container may refuse unshare(2).
    Step("single thread", "as in tier jailed", None, step_functions.have_one_thread),
    Step("bounding set", "no exec gains a capability", step_functions.empty_bounding_set_as_root),
    _LIMITS,
    Step(
        "code user",
        "each session has a uid of its own if root started the sandbox",
        step_functions.become_own,
    ),
    # With the uid that will read the files.
    Step(
        "interpreter",
        "the code's user must be able to read the interpreter",
        None,
        step_functions.read_interpreter,
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
        step_functions.limit_forks,
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
    "capabilities": (
        _CAPABILITIES._replace(calls=lambda jail: capabilities.drop_all_rows(_LACKS)),
    ),
    "no new privileges": (
        _NO_NEW_PRIVILEGES,
        Step(
            "no new privileges",
            "/proc of this kernel may not show the flag",
            None,
            step_functions.note_privileges,
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
        step_functions.limit_forks,
    ),
)

# In a helper process of init that opens files of the session for the host.
FILE_HELPER: Sequence[Step] = (
    INIT[1],
    # No access exceeds the rights of the code's user by mistake.
    Step("file user", "files belong to the code's user", step_functions.act_as_code),
    _CAPABILITIES,
    # After the last change of credentials, which would clear both.
    _DIES_WITH_INIT,
    _HIDDEN,
)

PROCESS_FILE_HELPER: Sequence[Step] = (INIT[1], _DIES_WITH_INIT)
ALONE_FILE_HELPER: Sequence[Step] = _alone(FILE_HELPER)

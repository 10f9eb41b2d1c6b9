"""The user of a container, its limits, and whether it can read this package."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Iterator, Sequence

from ...errors import IsolationError
from ...jail.users import SLOTS, own_id
from ...types import PACKAGE_DIR

# The number of users that a daemon maps for its containers.
_MAPPED_USERS = range(20_000, 60_000)
# Open files of the template; processes of its user, which the container limits as well.
_LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1 << 20),
    "nproc": (resource.RLIMIT_NPROC, 1 << 15),
}


def user(options: Sequence[str]) -> str:
    """The container's user and group: this process's own, or nobody's if that is root."""
    if os.geteuid() != 0:
        return f"{os.geteuid()}:{os.getegid()}"
    if any("userns" in option or "rootless" in option for option in options):
        number = secrets.choice(_MAPPED_USERS)
    else:
        number = own_id(secrets.randbelow(SLOTS))
    return f"{number}:{number}"


def limits() -> Iterator[tuple[str, int]]:
    """At most this process's own limits: the engine's may be more than it can grant."""
    for name, (number, enough) in _LIMITS.items():
        _, hard = resource.getrlimit(number)
        yield name, enough if hard == resource.RLIM_INFINITY else min(hard, enough)


def check_readable() -> None:
    """Raise IsolationError if a user who owns nothing cannot read this package."""
    for path, needed in ((PACKAGE_DIR, 0o005), (f"{PACKAGE_DIR}/zygote/boot.py", 0o004)):
        if os.stat(path).st_mode & needed != needed:
            raise IsolationError(
                "container",
                "package",
                f"{path} cannot be read by the container's user",
                f"chmod -R o+rX {PACKAGE_DIR}",
            )

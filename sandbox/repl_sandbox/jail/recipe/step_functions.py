"""Steps of the recipes that depend on the session, or need more than system calls."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import EACCES, EINVAL, EPIPE
from typing import Final

from ...native.libc import call
from ...native.steps import Address, Rows
from .. import (
    capabilities,
    cgroup_join,
    mounts,
    processes,
    reserved_descriptors,
    session_directory,
    users,
)
from ..landlock import landlock_rules, ruleset
from ..seccomp import fork_notifications
from ..session_jail import Jail
from . import recipe_slots

# Word sent between the processes of a new session to end a wait.
DONE: Final = bytes(4)
_ACCESS: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10  # uapi/linux/mman.h
_SHARED: Final = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED


# ── calls that depend on the session ────────────────────────────────────────────────────────────


def move_streams(jail: Jail) -> Rows:
    for stream, slot in ((1, recipe_slots.STDOUT), (2, recipe_slots.STDERR)):
        yield call("dup3", slot, stream, 0)


def move_descriptors(jail: Jail) -> Rows:
    moved = [
        (recipe_slots.CONTROL, reserved_descriptors.CONTROL),
        (recipe_slots.WORKER, reserved_descriptors.WORKER),
        (recipe_slots.CONTAINED, reserved_descriptors.CONTAINED),
        (recipe_slots.DONE, reserved_descriptors.DONE),
    ]
    if jail.snapshots >= 0:
        moved.append((recipe_slots.CHANNEL_INIT_END, reserved_descriptors.CHANNEL_INIT_END))
        moved.append((recipe_slots.CHANNEL_WORKER_END, reserved_descriptors.CHANNEL_WORKER_END))
    if jail.tier == "jailed":
        moved.append((recipe_slots.MAPPED, reserved_descriptors.MAPPED))
        # Otherwise a reader would wait for ever if the zygote were killed before writing.
        yield call("close", recipe_slots.WRITTEN)
    for slot, fd in moved:
        yield call("dup3", slot, fd, os.O_CLOEXEC)


def map_shared_page(jail: Jail) -> Rows:
    if jail.shared:
        yield call("mmap", jail.shared, mmap.PAGESIZE, _ACCESS, _SHARED, -1, 0)


def close_cgroup_view(jail: Jail) -> Rows:
    return () if jail.groups is None else cgroup_join.close_view_rows()


def prefer_for_oom_kill(jail: Jail) -> Rows:
    return () if jail.groups is None else cgroup_join.prefer_for_oom_kill_rows()


def empty_bounding_set_as_root(jail: Jail) -> Rows:
    # An ordinary user may not do this and does not need it: no_new_privs closes the same way.
    return () if jail.slot is None else capabilities.empty_bounding_set_rows(jail.last_capability)


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
    own = [(jail.folder, int(landlock_rules.OWN))] if jail.folder else []
    return ruleset.restrict_rows(jail.files, own)


def enter_workspace(jail: Jail) -> Rows:
    yield call("chdir", (jail.home or mounts.WORKSPACE).encode())


def wait_for_word(fd: int, reason: str) -> Rows:
    yield call("read", fd, Address(recipe_slots.WORD), len(DONE), least=len(DONE), reason=reason)
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
    os.environ["HOME"] = jail.home or f"{jail.folder}/{session_directory.WORKSPACE}"
    os.environ["TMPDIR"] = f"{jail.folder}/{session_directory.TEMPORARY}"
    os.environ["MPLCONFIGDIR"] = f"{jail.folder}/{session_directory.TEMPORARY}/matplotlib"
    os.environ["XDG_CACHE_HOME"] = f"{jail.folder}/{session_directory.TEMPORARY}/cache"
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # the template's
    # Code of an earlier worker may have removed them.
    for name in ("HOME", "TMPDIR"):
        os.makedirs(os.environ[name], exist_ok=True)
    os.chdir(os.environ["HOME"])


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

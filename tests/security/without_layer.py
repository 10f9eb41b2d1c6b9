"""A zygote whose sessions lack one layer: started in place of `repl_sandbox/zygote/boot.py`.

The name by which it is started says which (`LACKS`); the engine has no switch for it. Everything
else is the engine's own: `boot` is loaded from the package, then changed here before it serves.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(os.path.realpath(__file__)).parents[2] / "sandbox/repl_sandbox"
_PR_SET_KEEPCAPS = 8  # prctl(2)
# Steps that a session without a namespace leaves out, because they would change the host's.
_NEEDS = {
    "pid": ("proc",),
    "mnt": ("proc", "private mounts", "covered mounts", "workspace"),
    "uts": ("hostname",),
    "cgroup": ("cgroup namespace",),
}


def module(name: str) -> Any:
    """A module of the engine."""
    return import_module(f"repl_sandbox.{name}")


def drop_steps(*names: str) -> None:
    """Take the steps of these names out of every recipe."""
    recipes = module("jail.recipe")
    for tier, lists in dict(recipes.RECIPES).items():
        kept = ([step for step in steps if step.name not in names] for steps in lists)
        recipes.RECIPES[tier] = recipes.Recipe(*kept)


def share_network() -> None:
    """Leave sessions in the network of the template, which is the host's."""
    networks = module("zygote.networks").NetworkNamespacePool
    networks.__init__ = networks.enter = networks.leave = networks.forked = lambda *_: None
    networks.forget = networks.recover = networks.timeout_ms = networks.release_free = lambda *_: (
        None
    )


def drop_namespace(name: str) -> None:
    """Clone sessions without it, and leave out what would then be done to the host's."""
    spawner = module("zygote.spawn")
    spawner.FLAGS &= ~module("jail.users").SESSION[name]
    drop_steps(*_NEEDS.get(name, ()))
    if name == "user":
        be_users_of_the_host()
    if name == "pid":
        # It ends every process that it may signal: only where that is the session alone.
        module("init.branch").SessionBranch.kill_all = lambda branch: None


def be_users_of_the_host() -> None:
    """Without id maps uids mean the same as on the host: use some that no process has."""
    users = module("jail.users")
    become = users.become_rows
    users.map_session = lambda pid, slot: None
    users.become_rows = lambda number: become(users.FIRST_OUTER_ID + number)


def drop_root() -> None:
    """Leave the root of the view writable."""
    libc = module("native.libc")
    set_attributes = libc.mount_setattr

    def all_but_the_root(path: str, *args: Any, **options: Any) -> None:
        if path != "/":
            set_attributes(path, *args, **options)

    libc.mount_setattr = all_but_the_root


def drop_users() -> None:
    """Make the session's init, or its code, the host's user."""
    if sys.argv[2] == "confined":
        drop_steps("code user")
    users = module("jail.users")

    def as_the_host(pid: int, slot: int | None) -> None:
        rows = f"{users.INIT_ID} 0 1\n{users.CODE_ID} {users.FIRST_OUTER_ID} 1\n"
        for name in ("gid_map", "uid_map"):
            Path(f"/proc/{pid}/{name}").write_text(rows)

    users.map_session = as_the_host


def drop_capabilities() -> None:
    """Nor may the change of users drop them where no namespace is entered."""
    libc, users = module("native.libc"), module("jail.users")
    become = users.become_rows
    # The filter that every session inherits from the zygote refuses to keep them.
    filters = module("jail.seccomp")
    filters.SETUP = tuple(
        dataclasses.replace(row, options=(*row.options, _PR_SET_KEEPCAPS))
        if row.call == "prctl"
        else row
        for row in filters.SETUP
    )

    def become_with_capabilities(number: int) -> Iterator[Any]:
        yield libc.call("prctl", _PR_SET_KEEPCAPS, 1)
        yield from become(number)

    users.become_rows = become_with_capabilities
    drop_steps("capabilities")


def show_memory() -> None:
    """As a process shows it before a change of users hides it."""
    libc, processes = module("native.libc"), module("jail.processes")
    processes.hide_memory_rows = lambda: [libc.call("prctl", libc.PR_SET_DUMPABLE, 1)]


def drop_no_new_privileges() -> None:
    """Nowhere, for what the template has set its sessions would inherit."""
    module("jail.processes").forbid_new_privileges = lambda: None
    drop_steps("no new privileges")


def drop_group() -> None:
    """Start sessions in the group of the template."""
    spawner = module("zygote.spawn").SessionSpawner
    spawns_of, spawn = spawner._prepare_spawn, spawner._spawn_isolated
    spawner._prepare_spawn = lambda self, group, descriptors: spawns_of(self, b"0", descriptors)
    spawner._spawn_isolated = lambda self, number, spawns, version, *rest: spawn(
        self, number, spawns, 0, *rest
    )


LACKS: Mapping[str, Callable[[], None]] = {
    "nothing": lambda: None,
    **{
        f"{name} namespace": lambda name=name: drop_namespace(name)  # type: ignore[misc]
        for name in ("user", "pid", "mnt", "ipc", "uts", "cgroup")
    },
    "net namespace": share_network,
    "root": drop_root,
    "uid": drop_users,
    "capabilities": drop_capabilities,
    "no_new_privs": drop_no_new_privileges,
    "seccomp": lambda: drop_steps("seccomp"),
    "landlock": lambda: drop_steps("Landlock"),
    "resource limits": lambda: drop_steps("resource limits"),
    "cgroup": drop_group,
    "process group": lambda: drop_steps("process group"),
    "descriptors": lambda: drop_steps("descriptors"),
    "memory access": show_memory,
}


def _main() -> None:
    import importlib.util

    path = PACKAGE / "zygote/boot.py"
    spec = importlib.util.spec_from_file_location("boot", path)
    assert spec is not None and spec.loader is not None
    boot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(boot)
    boot._load_package()
    module("zygote.main")
    LACKS[Path(sys.argv[0]).stem]()
    boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)


if __name__ == "__main__":
    _main()

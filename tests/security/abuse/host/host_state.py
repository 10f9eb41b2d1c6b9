"""State of the host before and after a run: nothing may be different.

Processes are those below this one, which adopts whatever loses its parent (PR_SET_CHILD_SUBREAPER),
so that a daemon that got out cannot hide. Other programs of the machine go on meanwhile; of places
that they share (cgroups, /tmp, /dev/shm) only what can be the run's own is looked at.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from repl_sandbox.jail.users import FIRST_OUTER_ID

from .. import processes
from . import fixtures

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 60.0  # seconds; nothing is waited for where nothing was left
_SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")
_CGROUPS = Path("/sys/fs/cgroup")


def adopt() -> None:
    """Become the parent of every descendant that loses its own."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Host:
    """One snapshot of the state, as text."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    descriptors: int
    files: frozenset[str]
    memory: frozenset[str]


def look(supervisors: Container[int] = ()) -> Host:
    """Look at the host now. `supervisors`: process ids, of those that have ended as well."""
    own = processes.descendants(os.getpid())
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return Host(
        frozenset(f"process {pid}" for pid in processes.identities(own)),
        frozenset(f"mount {line}" for line in mounts),
        frozenset(f"cgroup {path}" for path in _empty_cgroups(supervisors)),
        processes.descriptors("self"),
        frozenset(_files()),
        frozenset(_segments()),
    )


def changes(before: Host, supervisors: Container[int] = ()) -> list[str]:
    """Return what was added since `before`, once processes that are ending have had time to go."""
    deadline = time.monotonic() + _PATIENCE
    while (found := _changes(before, look(supervisors))) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    return found


def _changes(before: Host, now: Host) -> list[str]:
    found: list[str] = []
    for name in ("processes", "mounts", "cgroups", "files", "memory"):
        found += sorted(getattr(now, name) - getattr(before, name))
    found += [f"gone: {path}" for path in sorted(before.files - now.files)]
    if now.descriptors > before.descriptors:
        found.append(f"descriptors {before.descriptors} before, {now.descriptors} after")
    return found


def _reap() -> None:
    """Collect adopted children that have ended; a child of our own is never waited for here."""
    for pid in processes.descendants(os.getpid()):
        if not processes.identities([pid]):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def _empty_cgroups(supervisors: Container[int]) -> Iterator[str]:
    """Groups without a process: one of a session that is over, or on its way.

    Of the sandboxes of `supervisors`: the folder of each names the process that made it.
    """
    for folder, _, _ in os.walk(_CGROUPS):
        owner = re.search(r"/repl-env-(\d+)-", folder)
        if owner is None or int(owner[1]) not in supervisors:
            continue
        try:
            if not Path(folder, "cgroup.procs").read_text():
                yield folder
        except OSError:
            continue


def _files() -> Iterator[str]:
    for path in sorted(fixtures.ROOT.rglob("*")):
        text = path.read_bytes() if path.is_file() else b""
        facts = path.lstat()
        yield f"file {path} {facts.st_mode:o} {text!r:.80}"
    for place in _SHARED:
        for name in _listed(place):
            path = Path(place, name)
            try:
                owner = path.lstat().st_uid
            except OSError:
                continue
            if owner >= FIRST_OUTER_ID or "escape" in name or "pwned" in name.lower():
                yield f"file {path}"


def _listed(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _segments() -> Iterator[str]:
    for kind in ("shm", "sem", "msg"):
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
            yield f"{kind} {line.split()[1]}"

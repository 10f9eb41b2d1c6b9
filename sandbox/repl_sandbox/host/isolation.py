"""`probe`: the isolation of a session, as measured, never as configured."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache
from typing import Final

from ..errors import SandboxError
from ..jail.landlock import SCOPES, VERSIONS
from ..types import Isolation, Layer
from .links import IsolationBaseline, SessionLinks
from .proc import NAMESPACES

_FILTERED = frozenset({"uid", "capabilities", "no_new_privs", "seccomp"})

# The layers that a session of a tier must have, from the strongest tier to the weakest.
TIERS: Final[Mapping[str, frozenset[str]]] = {
    # A kernel without Landlock can still jail; one that has Landlock and refuses it does not get
    # here.
    "jailed": _FILTERED | {"root", *(f"{name} namespace" for name in NAMESPACES)},
    # A container around confined sessions, which nothing else separates from one another.
    "container": _FILTERED | {"landlock", "container"},
    "confined": _FILTERED | {"landlock"},
    "process": frozenset(),
}


OWN_CONTAINER: Final = "own container"


def lacks(tier: str, active: Collection[str]) -> set[str]:
    """The layers that `tier` needs and that are not among `active`."""
    missing = TIERS[tier] - set(active)
    # Landlock separates sessions, and there is no other session in the container.
    alone = tier == "container" and OWN_CONTAINER in active
    return set(missing - {"landlock"} if alone else missing)


def probe(links: SessionLinks) -> Isolation:
    """Probe the layers around the session's worker, from /proc of the host.

    The facts about the session are read each time, those about the host and template once
    (`IsolationBaseline`). A layer that cannot be seen is reported as not active, and the tier is
    the strongest whose layers are all active.

    Raises:
        SandboxError: the session's processes are gone.
    """
    pid, baseline = links.worker_pid, links.baseline
    try:
        status: dict[str, str] = baseline.query("status", pid)
    except OSError as error:
        raise SandboxError(f"the session's process cannot be inspected: {error}") from error
    uid = int(status["Uid"].split()[0])
    abi, forks = links.findings.get("landlock", 0), links.findings.get("forks", 0)
    # If /proc does not show it, the worker reported it before any code ran.
    privileges = status.setdefault("NoNewPrivs", str(links.findings.get("no_new_privs", "?")))
    layers = (
        *(_namespace(pid, baseline, name) for name in NAMESPACES),
        _root(pid, baseline),
        _users(pid, baseline, uid),
        _own_user(uid, baseline),
        _capabilities(status),
        Layer("no_new_privs", privileges == "1", f"NoNewPrivs {privileges}"),
        _seccomp(status, baseline, forks),
        _landlock(abi),
        *_container(baseline, status),
    )
    active = {layer.name for layer in layers if layer.active}
    tier = next(tier for tier in TIERS if not lacks(tier, active))
    # A limit, not isolation: without it a watchdog and resource limits enforce what they can.
    return Isolation(tier, (*layers, _signals(abi, active), _group(links)))


def _namespace(pid: int, baseline: IsolationBaseline, name: str) -> Layer:
    """Own if it is neither the host's nor that of the template, which is every session's parent."""
    try:
        own, others = baseline.query("namespace", pid, name), baseline.namespaces[name]
    except OSError as error:
        return Layer(f"{name} namespace", active=False, detail=_unseen(error))
    return Layer(f"{name} namespace", own not in others, own)


def _root(pid: int, baseline: IsolationBaseline) -> Layer:
    try:
        read_only: bool = baseline.query("is_read_only", pid)
    except OSError as error:
        return Layer("root", active=False, detail=_unseen(error))
    return Layer("root", read_only, f"/ is {'read-only' if read_only else 'writable'}")


def _users(pid: int, baseline: IsolationBaseline, uid: int) -> Layer:
    """Return whether every user that the session can be is another than root outside."""
    try:
        rows: str = baseline.query("read", pid, "uid_map")
        shared = rows == baseline.uid_map
    except OSError as error:
        return Layer("uid", active=False, detail=_unseen(error))
    # Without a namespace of its own the map is the host's, and uids mean the same.
    outer = [uid] if shared else [int(line.split()[1]) for line in rows.splitlines()]
    return Layer("uid", bool(outer) and 0 not in outer, f"outer uids {', '.join(map(str, outer))}")


def _group(links: SessionLinks) -> Layer:
    """Active if the worker is in the session's cgroup and the kernel has its limits."""
    if links.group is None:
        return Layer("cgroup", active=False, detail="none; a watchdog adds up what processes hold")
    names = {os.sep.join(folder.rsplit(os.sep, 2)[1:]) for folder in links.group.folders}
    try:
        rows = links.baseline.query("read", links.worker_pid, "cgroup").splitlines()
        memory, processes = links.group.limits()
    except OSError as error:
        return Layer("cgroup", active=False, detail=_unseen(error))
    inside = [row for row in rows if row.endswith(tuple(names))]
    limited = len(inside) >= len(set(links.group.folders)) and memory > 0 and processes > 0
    detail = f"version {links.group.version}, {memory >> 20} MiB, {processes} processes"
    return Layer("cgroup", limited, detail)


def _own_user(uid: int, baseline: IsolationBaseline) -> Layer:
    """Return whether the session's user differs from the host's and the template's, and the
    consequences.
    """
    others = baseline.uids
    if uid not in others:
        detail = f"uid {uid}, the host's is {', '.join(map(str, sorted(others)))}"
        return Layer("own uid", active=True, detail=detail)
    owner = "the host's" if uid == os.geteuid() else "that of all sessions of the template"
    return Layer("own uid", active=False, detail=f"uid {uid} is also {owner}")


def _container(baseline: IsolationBaseline, status: dict[str, str]) -> tuple[Layer, ...]:
    """The layer of the container that the session is in, if any, with all that it must have."""
    if baseline.container is None:
        return ()
    missing = list(baseline.container.missing)
    if not baseline.is_remote and len(status.get("NSpid", "").split()) < 2:
        missing.append("a process id of the container's")
    summary = "its own, with every wall"
    if baseline.container.own_kernel:
        summary += ", and a kernel of its own"
    detail = f"not seen: {', '.join(missing)}" if missing else summary
    layer = Layer("container", not missing, detail)
    if not baseline.container.one:
        return (layer,)
    return (layer, Layer(OWN_CONTAINER, not missing, "no other session is in its container"))


def _unseen(error: OSError) -> str:
    return f"not visible: {error.strerror}"


def _capabilities(status: dict[str, str]) -> Layer:
    sets = {name: status.get(name, "?") for name in ("CapInh", "CapPrm", "CapEff")}
    sets["CapAmb"] = status.get("CapAmb", status.get("CapInh", "?"))  # a part of those
    if status.get("NoNewPrivs") != "1":  # else it cannot be limited
        sets["CapBnd"] = status.get("CapBnd", "?")
    none = all(set(value) == {"0"} for value in sets.values())
    detail = "none" if none else ", ".join(f"{name} {value}" for name, value in sets.items())
    return Layer("capabilities", none, detail)


def _seccomp(status: dict[str, str], baseline: IsolationBaseline, others: int) -> Layer:
    """`others`: filters that forbid nothing."""
    # The template's filter alone also reads as mode 2; the session's own makes two.
    if "Seccomp_filters" not in status:
        detail = f"mode {status.get('Seccomp')}, by a kernel that does not count filters"
        return Layer("seccomp", status.get("Seccomp") == "2", detail)
    filters = int(status["Seccomp_filters"]) - baseline.filters - others
    active = status.get("Seccomp") == "2" and filters >= 2
    return Layer("seccomp", active, f"mode {status.get('Seccomp')}, {filters} filters")


def _signals(abi: int, active: Collection[str]) -> Layer:
    """Return whether the session cannot signal processes outside of it."""
    by = {
        "a pid namespace": "pid namespace" in active,
        "an own uid": "own uid" in active,
        "the scope of Landlock": abi >= SCOPES,
    }
    found = [name for name, active in by.items() if active]
    detail = f"held by {', '.join(found)}" if found else "can reach this user's processes"
    return Layer("signals", bool(found), detail)


def _landlock(abi: int) -> Layer:
    """The worker's report before any code ran: no file in /proc shows it from outside."""
    if not abi:
        return Layer("landlock", active=False, detail="no ruleset was seen to hold")
    return Layer("landlock", active=True, detail=f"ABI {abi}: {_restrictions(abi)}")


@cache
def _restrictions(abi: int) -> str:
    return ", ".join(version.reason for version in VERSIONS[:abi] if version.restricts)

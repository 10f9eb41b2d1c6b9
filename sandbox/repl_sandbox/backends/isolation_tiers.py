"""The choice of a sandbox's tier: what the caller accepts and this system supports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import IsolationError, SandboxError
from ..jail.remedies import known
from ..types import Isolation
from ..zygote.client.measured_isolation import TIERS, lacks

_T = TypeVar("_T")

STRONGEST_FIRST = tuple(TIERS)


def named(isolation: str, require: str | None) -> tuple[str, ...]:
    """Return the acceptable tiers, the strongest first, whatever this system supports.

    Raises:
        ValueError: a name is unknown, or the two exclude each other.
    """
    if isolation not in ("auto", *STRONGEST_FIRST):
        names = ", ".join(("auto", *STRONGEST_FIRST))
        raise ValueError(f"isolation must be one of {names}, not {isolation!r}")
    if require == "container" and isolation == "auto":
        raise ValueError("require='container' needs isolation='container', with an image")
    if require not in (None, *STRONGEST_FIRST):
        names = ", ".join(STRONGEST_FIRST)
        raise ValueError(f"require must be None or one of {names}, not {require!r}")
    if require is None:
        require = "confined" if isolation == "auto" else isolation
    enough = STRONGEST_FIRST[: STRONGEST_FIRST.index(require) + 1]
    if isolation != "auto" and isolation not in enough:
        raise ValueError(f"require={require!r} excludes isolation={isolation!r}, which is weaker")
    if isolation != "auto":
        return (isolation,)
    # Only by name: the operator has to choose an image.
    return tuple(tier for tier in enough if tier != "container")


def acceptable(isolation: str, require: str | None) -> tuple[str, ...]:
    """Return the tiers to try, the strongest first.

    Raises:
        ValueError: as `named`.
        IsolationError: the engine does not run on this system.
    """
    tiers = named(isolation, require)
    if sys.platform != "linux":
        raise IsolationError(
            tiers[-1],
            "platform",
            f"{sys.platform} has no namespaces, seccomp or Landlock, which sessions need",
            "Use Linux, or a remote server",
        )
    return tiers


def strongest(
    tiers: Sequence[str], start: Callable[[str], _T]
) -> tuple[_T, tuple[IsolationError, ...]]:
    """Return the result of `start` for the first of `tiers` that works, and the errors of those
    before.

    Raises:
        IsolationError: none works. It is that of the last, and has the others as notes.
        SandboxError: `start` failed otherwise, and no weaker one is tried; notes as above.
    """
    refusals: list[IsolationError] = []
    for tier in tiers:
        try:
            return start(tier), tuple(refusals)
        except IsolationError as error:
            refusals.append(error)
        except SandboxError as error:
            _note(error, refusals)
            raise
    *stronger, last = refusals
    _note(last, stronger)
    raise last


def _note(error: SandboxError, refusals: Sequence[IsolationError]) -> None:
    for refusal in refusals:
        error.add_note(f"and before that: {refusal}")


def confirm(tier: str, host_path: Isolation) -> None:
    """Raise IsolationError unless a session of `tier` was seen to have all that the tier needs."""
    lacking = lacks(tier, [each.name for each in host_path.layers if each.active])
    missing = [each for each in host_path.layers if each.name in lacking]
    if missing:
        found = "; ".join(f"{each.name}: {each.detail}" for each in missing)
        raise IsolationError(
            tier,
            "probe",
            f"a test session started, but these layers were not found: {found}",
            known("probe"),
        )

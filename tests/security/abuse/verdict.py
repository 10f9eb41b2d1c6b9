"""Verdict on a case in one tier, run by one identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "not applicable", "not run"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason`: what failed, why the case does not apply, or why it was not run."""

    id: str
    group: str
    status: Status
    reason: str = ""
    seconds: float = 0.0


class NotApplicable(Exception):
    """The case asks about something that this engine does not have; the text says what."""


# Cases and tiers: what need not pass though the corpus says so, with the reason. Those that need
# what this version lacks are not here: their checks find that out and say so.
NOT_APPLICABLE: dict[tuple[str, str], str] = {
    ("fsr-proc-all-environ", "process"): "code has its host's uid, so the host's environment is "
    "readable; the sessions' own is asked for by fsr-proc-self-environ",
    ("xs-same-uid", "container"): "a container without capabilities has one user, as layer "
    "`own uid` says; Landlock divides its sessions",
}

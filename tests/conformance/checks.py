"""All checks, in the order in which a reader wants to see them fail."""

from __future__ import annotations

from .cells import CELLS
from .clocks import CLOCKS
from .deaths import DEATHS
from .functions import FUNCTIONS
from .jails import JAILS
from .limits import LIMITS
from .output import OUTPUT
from .steps import Check
from .unchanged import UNCHANGED
from .values import VALUES

CHECKS: tuple[Check, ...] = (
    *CELLS,
    *OUTPUT,
    *VALUES,
    *FUNCTIONS,
    *CLOCKS,
    *LIMITS,
    *DEATHS,
    *JAILS,
    *UNCHANGED,
)

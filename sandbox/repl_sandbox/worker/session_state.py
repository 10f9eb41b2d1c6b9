"""`SessionState`: state of the session that all parts of a worker share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshots.branch_fork import BranchFork
    from ..snapshots.snapshot_table import SnapshotTable
    from .variables.final_answers import FinalAnswers


class SessionState:
    """The state of one session, in its worker and in each fork of the worker.

    Attributes:
        table: memory page that the worker shares with its init.
        snapshots: None where the session has no recovery.
        answers: None where the session has no answer functions.
        printed: accepts printed forms of an answer, as `printed` of `run_cell`.
        used: whether code of the session has run.
        ended: end of the last cell, on the monotonic clock.
        rapid: with snapshots, whether the last cell came soon after the one before.
    """

    __slots__ = ("answers", "ended", "printed", "rapid", "snapshots", "table", "used")

    def __init__(self) -> None:
        self.table: SnapshotTable | None = None
        self.snapshots: BranchFork | None = None
        self.answers: FinalAnswers | None = None
        self.printed: Callable[[str, bool], None] | None = None
        self.used = False
        self.ended: float = 0  # an int: an object that exists already
        self.rapid = False

    def changed(self) -> None:
        """Record that the variables differ, or may differ, from those of the last snapshot."""
        if self.snapshots is not None:
            self.snapshots.due = True

    def interrupted(self) -> int:
        """The cell that the last interrupt was for; 0 before there was any."""
        # A branch has another page.
        table = self.table if self.snapshots is None else self.snapshots.table
        return 0 if table is None else table.interrupted

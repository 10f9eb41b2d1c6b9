"""`Checkpoints`: saves a worker's namespace as bytes, and restores one from them."""

from __future__ import annotations

import json

from ..wire.messages import Load, Save
from .cells import Cells
from .changes import Changes
from .namespace import Namespace
from .own_imports import own
from .session_state import SessionState

_loads = json.loads


class Checkpoints:
    """Those of one namespace; each is a job of `cells`."""

    __slots__ = ("_cells", "_changes", "_namespace", "_session")

    def __init__(
        self, session: SessionState, cells: Cells, namespace: Namespace, changes: Changes
    ) -> None:
        self._session, self._cells = session, cells
        self._namespace, self._changes = namespace, changes

    # The modules that only checkpoints need are no part of the template.

    def save(self, command: Save) -> None:
        """Write the namespace to the file that goes with the command."""

        def job(fd: int) -> str:
            save = own(f"{__package__}.saving").save
            return str(save(self._namespace, self._session.answers, fd, command.size))

        self._cells.run_job(command.cell, job)

    def load(self, command: Load) -> None:
        """Bind what was saved in the file that goes with the command."""

        def job(fd: int) -> str:
            load = own(f"{__package__}.loading").load
            manifest = _loads(command.manifest)
            missing = str(load(self._namespace, self._session.answers, fd, manifest))
            # What was restored is not a change that the first cell made.
            self._changes.since_last()
            return missing

        self._cells.run_job(command.cell, job)

"""`CheckpointRequests`: writes a worker's namespace to a checkpoint, and restores one."""

from __future__ import annotations

import json

from ..protocol.messages import Load, Save
from .cell_runner import CellRunner
from .namespace.main_namespace import Namespace
from .namespace.trusted_imports import import_trusted
from .session_state import SessionState
from .variables.variable_changes import VariableChanges

_loads = json.loads


class CheckpointRequests:
    """Checkpoint requests of one namespace; each is an internal job of `cells`."""

    __slots__ = ("_cells", "_changes", "_namespace", "_session")

    def __init__(
        self,
        session: SessionState,
        cells: CellRunner,
        namespace: Namespace,
        changes: VariableChanges,
    ) -> None:
        self._session, self._cells = session, cells
        self._namespace, self._changes = namespace, changes

    # Modules that only checkpoints need are not part of the template.

    def save(self, command: Save) -> None:
        """Write the namespace to the file attached to the command."""

        def job(fd: int) -> str:
            save = import_trusted(f"{__package__}.checkpoint.checkpoint_writer").save
            return str(save(self._namespace, self._session.answers, fd, command.size))

        self._cells.run_job(command.cell, job)

    def load(self, command: Load) -> None:
        """Bind the variables in the file attached to the command."""

        def job(fd: int) -> str:
            load = import_trusted(f"{__package__}.checkpoint.checkpoint_reader").load
            manifest = _loads(command.manifest)
            missing = str(load(self._namespace, self._session.answers, fd, manifest))
            # Restored variables are not changes of the next cell.
            self._changes.since_last()
            return missing

        self._cells.run_job(command.cell, job)

"""`WorkspaceSnapshots`: keeps and restores the files of a session: init's end of the snapshot
helper.

A worker whose files are kept waits for that. Init does not wait: the host may send a command.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Container, Iterable
from contextlib import suppress

from ..jail.session_jail import Jail
from ..native import process_forks
from .snapshot_channel import SnapshotChannel
from .snapshot_table import SnapshotTable
from .workspace import snapshot_helper

# Seconds, less than the host waits. Reading or writing the largest workspace takes a tenth of a
# second of processor time.
_TIMEOUT = 10.0

ALL_REMOVED = "files: they exceeded Limits.workspace, and all were removed"


class WorkspaceSnapshots:
    """The kept files of one session; `trusted` learns of processes that run init's own code."""

    def __init__(
        self, jail: Jail, channel: SnapshotChannel, table: SnapshotTable, trusted: set[int]
    ) -> None:
        self._jail = jail
        self._channel = channel
        self._table = table
        self._trusted = trusted
        self._helper: tuple[int, socket.socket] | None = None
        self._answer_due = False  # whether a worker waits, and the helper's answer is due
        self._failed = False  # once the helper is gone, no more are kept
        self._removed = False  # whether all files were removed, because they exceeded the limit

    @property
    def processes(self) -> set[int]:
        """The helper's process id, if there is one."""
        return set() if self._helper is None else {self._helper[0]}

    def listen(self, poller: select.poll) -> None:
        """Have `poller` wake init for the helper's answer if one is due, else for the workers."""
        self._poller = poller
        self._channel.use_poller(poller)
        if self._answer_due:
            assert self._helper is not None
            poller.register(self._helper[1], select.POLLIN)
        else:
            self._channel.listen()

    def handle_input(self, ready: Container[int]) -> bool:
        """Return whether messages of workers may be read: none while another worker waits."""
        if not self._answer_due:
            return self._channel.is_ready(ready)
        assert self._helper is not None
        if self._helper[1].fileno() in ready and _readable(self._helper[1]):
            self.finish_keeping()
        return False

    def keep(self, cell: int, needed: Iterable[int]) -> None:
        """Keep the files as those after `cell`, for the worker; those of `needed` stay kept."""
        self._begin(cell, needed)
        if not self._answer_due:
            self._channel.confirm_kept()

    def keep_for_host(self, cell: int, needed: Iterable[int]) -> None:
        """As `keep`, for changes by the host, which are announced to the worker.

        The worker cannot notice them.
        """
        self.finish_keeping()
        self._begin(cell, needed)
        self.finish_keeping(confirm=False)
        self._table.note_file_changes()

    def _begin(self, cell: int, needed: Iterable[int]) -> None:
        # The state before the first cell can always be restored: it needs no snapshot.
        request = {"op": "keep", "cell": cell, "needed": [0, *needed]}
        if self._failed or not snapshot_helper.ask(self._helper_socket(), request):
            self._failed = True
            return
        assert self._helper is not None
        self._answer_due = True
        # Other messages of workers wait meanwhile, however many.
        self._channel.ignore()
        self._poller.register(self._helper[1], select.POLLIN)

    def finish_keeping(self, *, confirm: bool = True) -> None:
        """Read the helper's answer, if one is due; the worker is `confirm` that it may go on."""
        if self._answer_due:
            assert self._helper is not None
            self._failed = snapshot_helper.answer(self._helper[1]) is None
            self._stop_waiting()
            if confirm:
                self._channel.confirm_kept()

    def _stop_waiting(self) -> None:
        if self._answer_due:
            assert self._helper is not None
            self._answer_due = False
            self._poller.unregister(self._helper[1])
            self._channel.listen()

    def restore(self, cell: int) -> list[str]:
        """Restore the files from after `cell`; return the names of those that could not be
        restored.
        """
        if self._removed:
            self._removed = False
            return [ALL_REMOVED]
        self.finish_keeping(confirm=False)
        lost: list[str] | None = None
        if not self._failed and snapshot_helper.ask(
            self._helper_socket(), {"op": "restore", "cell": cell}
        ):
            assert self._helper is not None
            lost = snapshot_helper.answer(self._helper[1])
        self._table.note_file_changes()
        if lost is None:
            self._failed = True
            return [
                "files: the snapshot helper is gone or too slow; files are as the code left them"
            ]
        return lost

    def forget(self) -> None:
        """Forget the helper, which is gone."""
        self._drop_helper()
        self._failed = False

    def note_removed(self) -> None:
        """Note that all files were removed."""
        self._drop_helper()
        self._removed = True

    def _drop_helper(self) -> None:
        self._stop_waiting()
        if self._helper is not None:
            self._helper[1].close()
        self._helper = None

    def remove(self) -> None:
        """Remove the workspace of a branch that has ended, if there is one, and its helper."""
        self.finish_keeping(confirm=False)
        if not self._is_removed() and snapshot_helper.ask(
            self._helper_socket(), {"op": "restore", "cell": -1}
        ):
            assert self._helper is not None
            snapshot_helper.answer(self._helper[1])
            self._is_removed()
        if self._helper is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._helper[0], signal.SIGKILL)
            self._helper[1].close()
            self._helper = None

    def _is_removed(self) -> bool:
        """Remove the workspace, if it is empty; return whether there is none any more."""
        try:
            os.rmdir(self._jail.home)
        except OSError as error:
            return error.errno == errno.ENOENT
        return True

    def _helper_socket(self) -> socket.socket | None:
        """The socket to the helper, which is forked when it is first needed."""
        if self._helper is None:
            own_end, helper_end = socket.socketpair()
            try:
                pid = process_forks.fork()
            except OSError:
                return None
            if pid == 0:
                signal.set_wakeup_fd(-1)
                snapshot_helper.run_snapshot_helper(self._jail, helper_end)
            helper_end.close()
            own_end.settimeout(_TIMEOUT)
            self._helper = pid, own_end
            self._trusted.add(pid)
        return self._helper[1]


def _readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))

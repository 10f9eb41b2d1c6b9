"""The kept files of a session: init's end (`WorkspaceSnapshots`) and the helper that holds them."""

from __future__ import annotations

import _signal
import errno
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ..jail import session_directory, users
from ..jail.recipe import RECIPES
from ..jail.steps import Jail, contain
from ..native import forks
from ..worker.snapshot_table import SnapshotTable
from . import files
from .snapshot_channel import SnapshotChannel
from .workspace_versions import WorkspaceVersions

# The snapshot helper: a process of a session that holds earlier contents of its workspace.
#
# Forked by init when files are first to be kept; like a file helper it runs init's code with the
# rights of the session's code to files and no others. It keeps contents in its own memory, up to
# a budget: code cannot find them in the session's directories, and open files stay the same
# files.

_EMPTY = -1  # before any state that is kept
_LENGTH = struct.Struct("=I")


def ask_helper(sock: socket.socket | None, request: dict[str, Any]) -> bool:
    """In init: send the helper a request; return whether there is a helper. `answer` must
    follow.
    """
    if sock is None:
        return False
    try:
        _send(sock, request)
    except OSError:  # it is gone, ended by the session's code
        return False
    return True


def helper_answer(sock: socket.socket) -> list[str] | None:
    """In init: return the names of losses, None if the helper does not answer."""
    try:
        names: list[str] | None = _receive(sock)
    except (OSError, ValueError):  # it is gone, or too slow
        return None
    return names


def run_snapshot_helper(jail: Jail, sock: socket.socket) -> NoReturn:
    """Be the snapshot helper of a session, at the other end of `sock`."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        jail.descriptors = {0, 1, 2, sock.fileno()}
        contain(jail, RECIPES[jail.tier].file_helper)
        # Of the states kept, of the current one, and of that which it replaces.
        versions = WorkspaceVersions(files.workspace_root(jail), jail.snapshots + 2)
        _serve(sock, versions, jail)
    # Boundary: as in the file helper. Init sees end of file, and the files stay as they are.
    except Exception as error:  # noqa: BLE001
        os.write(
            2, f"the session's snapshot helper failed: {type(error).__name__}: {error}\n".encode()
        )
    finally:
        os._exit(0)


def _serve(sock: socket.socket, versions: WorkspaceVersions, jail: Jail) -> None:
    while (request := _receive(sock)) is not None:
        try:
            if request["op"] == "keep":
                versions.keep(request["cell"], request["needed"])
                _send(sock, [])
            elif request["op"] == "restore":
                _send(sock, versions.restore(request["cell"]))
            else:
                versions.restore(_EMPTY)
                temporary = files.open_below(jail, files.temporary_path(jail))
                _send(sock, WorkspaceVersions(temporary, 0).restore(_EMPTY))
        except OSError as error:
            _send(sock, [f"files: {error.strerror}"])


def _send(sock: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket) -> Any:
    head = sock.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    return json.loads(sock.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL))


# `WorkspaceSnapshots`: keeps and restores the files of a session: init's end of the snapshot
# helper.
#
# A worker whose files are kept waits for that. Init does not wait: the host may send a command.

# Seconds, less than the host waits. Reading or writing the largest workspace takes a tenth of a
# second of processor time.
_TIMEOUT = 10.0

_MAX_NAMED = 20
_EXCEEDED = "exceeded Limits.workspace, and was removed"
_ALL_EXCEEDED = "files: they exceeded Limits.workspace, and all that were not kept were removed"


@dataclass(frozen=True, slots=True)
class WorkspaceExcess:
    """Too many files in a session's directory, which no mount limits.

    `own`, `others`: the paths of the directories there that belong to the branch, and to others.
    """

    jail: Jail
    own: Sequence[str]
    others: Sequence[str]

    def remove(self, restore: Callable[[], list[str]] = list) -> list[str]:
        """Restore the files that are kept by `restore`, and remove others until the rest is within
        the limit; return the names of what is lost.

        What has changed last goes first. If there are too many files for that, all go but those
        that are kept.
        """
        jail = self.jail
        # The code may have closed it to itself; root, who restores the files, would not notice.
        os.chmod(jail.folder, 0o700)
        start = session_directory.await_tick()
        lost = restore()
        paths = session_directory.make_room(jail.folder, jail.workspace, self.others, start)
        if paths is not None:
            return [*lost, *self._names(paths)]
        owner = None if jail.slot is None else users.own_id(jail.slot)
        session_directory.clear(jail.folder, owner, self.own, self.others)
        lost = [_ALL_EXCEEDED, *restore()]
        paths = session_directory.make_room(jail.folder, jail.workspace, self.others)
        return [*lost, *self._names(paths or [])]

    def _names(self, paths: list[str]) -> list[str]:
        own = f"{self.own[0]}/"
        names = [f"file {path.removeprefix(own)!a}: {_EXCEEDED}" for path in paths[:_MAX_NAMED]]
        more = len(paths) - _MAX_NAMED
        return names if more <= 0 else [*names, f"{more:,} more files: {_EXCEEDED}"]


class WorkspaceSnapshots:
    """The kept files of one session; `trusted` learns of processes that run init's own code.

    `answer_due`: whether a worker waits, and the helper's answer is due.
    """

    def __init__(
        self, jail: Jail, channel: SnapshotChannel, table: SnapshotTable, trusted: set[int]
    ) -> None:
        self._jail = jail
        self._channel = channel
        self._table = table
        self._trusted = trusted
        self._helper: tuple[int, socket.socket] | None = None
        self.answer_due = False
        self._failed = False  # once the helper is gone, no more are kept
        self.excess: WorkspaceExcess | None = None  # what the next `restore` also has to remove

    @property
    def processes(self) -> set[int]:
        """The helper's process id, unless init has reaped it: the number may be reused."""
        return set() if self._helper is None else {self._helper[0]} & self._trusted

    def listen(self, poller: select.poll) -> None:
        """Have `poller` wake init for the helper's answer if one is due, else for the workers."""
        self._poller = poller
        self._channel.use_poller(poller)
        if self.answer_due:
            assert self._helper is not None
            poller.register(self._helper[1], select.POLLIN)
        else:
            self._channel.listen()

    def handle_input(self, ready: Container[int]) -> bool:
        """Return whether messages of workers may be read: none while another worker waits."""
        if not self.answer_due:
            return self._channel.is_ready(ready)
        assert self._helper is not None
        if self._helper[1].fileno() in ready and _readable(self._helper[1]):
            self.finish_keeping()
        return False

    def keep(self, cell: int, needed: Iterable[int]) -> None:
        """Keep the files as those after `cell`, for the worker; those of `needed` stay kept."""
        self._begin(cell, needed)
        if not self.answer_due:
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
        if self._failed or not ask_helper(self._helper_socket(), request):
            self._failed = True
            return
        assert self._helper is not None
        self.answer_due = True
        # Other messages of workers wait meanwhile, however many.
        self._channel.ignore()
        self._poller.register(self._helper[1], select.POLLIN)

    def finish_keeping(self, *, confirm: bool = True) -> None:
        """Read the helper's answer, if one is due; the worker is `confirm` that it may go on."""
        if self.answer_due:
            assert self._helper is not None
            self._failed = helper_answer(self._helper[1]) is None
            self._stop_waiting()
            if confirm:
                self._channel.confirm_kept()

    def _stop_waiting(self) -> None:
        if self.answer_due:
            assert self._helper is not None
            self.answer_due = False
            self._poller.unregister(self._helper[1])
            self._channel.listen()

    def restore(self, cell: int) -> list[str]:
        """Restore the files from after `cell`; return the names of those that could not be
        restored.
        """
        excess, self.excess = self.excess, None
        if excess is None:
            return self._restore(cell)
        return excess.remove(lambda: self._restore(cell))

    def _restore(self, cell: int) -> list[str]:
        self.finish_keeping(confirm=False)
        lost: list[str] | None = None
        if not self._failed and ask_helper(self._helper_socket(), {"op": "restore", "cell": cell}):
            assert self._helper is not None
            lost = helper_answer(self._helper[1])
        self._table.note_file_changes()
        if lost is None:
            self._failed = True
            return [
                "files: the snapshot helper is gone or too slow; files are as the code left them"
            ]
        return lost

    def forget(self) -> None:
        """Forget the helper, which is gone, and with it what it has kept."""
        self._stop_waiting()
        if self._helper is not None:
            self._helper[1].close()
        self._helper = None
        self._failed = False
        if self.excess is not None:
            self.excess.remove()
        self.excess = None

    def remove(self) -> None:
        """Remove the workspace of a branch that has ended, if there is one, and its helper."""
        self.finish_keeping(confirm=False)
        if not self._is_removed() and ask_helper(self._helper_socket(), {"op": "remove"}):
            assert self._helper is not None
            helper_answer(self._helper[1])
            self._is_removed()
        if self._helper is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._helper[0], signal.SIGKILL)
            self._helper[1].close()
            self._helper = None

    def _is_removed(self) -> bool:
        """Remove the directories of a branch, if they are empty; return whether they are gone."""
        own = os.path.dirname(files.workspace_path(self._jail))
        # The helper needs the latter.
        for path in (files.temporary_path(self._jail), files.workspace_path(self._jail)):
            try:
                self._remove_directory(path)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return False
        with suppress(OSError):  # branches of this branch are below it
            while session_directory.is_of_branch(os.path.basename(own)):
                self._remove_directory(own)
                own = os.path.dirname(own)
        return True

    def _remove_directory(self, path: str) -> None:
        above, name = os.path.split(path)
        fd = files.open_below(self._jail, above)
        try:
            os.rmdir(name, dir_fd=fd)
        finally:
            os.close(fd)

    def _helper_socket(self) -> socket.socket | None:
        """The socket to the helper, which is forked when it is first needed."""
        if self._helper is None:
            own_end, helper_end = socket.socketpair()
            try:
                pid = forks.fork()
            except OSError:
                return None
            if pid == 0:
                signal.set_wakeup_fd(-1)
                run_snapshot_helper(self._jail, helper_end)
            helper_end.close()
            own_end.settimeout(_TIMEOUT)
            self._helper = pid, own_end
            self._trusted.add(pid)
        return self._helper[1]


def _readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))

"""The snapshot helper: a process of a session that holds earlier contents of its workspace.

Forked by init when files are first to be kept; like a file helper it runs init's code with the
rights of the session's code to files and no others. It keeps contents in its own memory, up to a
budget: code cannot find them in the session's directories, and open files stay the same files.
"""

from __future__ import annotations

import _signal
import json
import os
import socket
import struct
from typing import Any, NoReturn

from ...jail.recipe.recipes import RECIPES
from ...jail.recipe.step_execution import contain
from ...jail.session_jail import Jail
from . import workspace_files
from .workspace_versions import WorkspaceVersions

_LENGTH = struct.Struct("=I")


def ask(sock: socket.socket | None, request: dict[str, Any]) -> bool:
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


def answer(sock: socket.socket) -> list[str] | None:
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
        versions = WorkspaceVersions(workspace_files.root(jail), jail.snapshots + 2)
        _serve(sock, versions)
    # Boundary: as in the file helper. Init sees end of file, and the files stay as they are.
    except Exception as error:  # noqa: BLE001
        os.write(
            2, f"the session's snapshot helper failed: {type(error).__name__}: {error}\n".encode()
        )
    finally:
        os._exit(0)


def _serve(sock: socket.socket, versions: WorkspaceVersions) -> None:
    while (request := _receive(sock)) is not None:
        try:
            if request["op"] == "keep":
                versions.keep(request["cell"], request["needed"])
                _send(sock, [])
            else:
                _send(sock, versions.restore(request["cell"]))
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

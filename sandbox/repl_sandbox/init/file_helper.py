"""The file helper: a process that init forks for one operation of the host on the session's files.

It has its own socket to the host, reads one request from it and answers. It runs init's code, with
the rights of the session's code to files and no others, and ends after the answer.
"""

from __future__ import annotations

import _signal
import os
import socket
from collections.abc import Iterator
from errno import EIO
from typing import Any, NoReturn

from ..jail.recipe.recipes import RECIPES
from ..jail.recipe.step_execution import contain
from ..jail.session_jail import Jail
from ..protocol import control_channel
from ..snapshots.workspace import workspace_files

# Bytes of rows in one message: with the longest path after that, still below the message limit.
_BATCH = 1 << 15


def run_file_helper(jail: Jail, fd: int) -> NoReturn:
    """Serve one request, which arrives on socket `fd`."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        jail.descriptors = {0, 1, 2, fd}
        contain(jail, RECIPES[jail.tier].file_helper)
        host = socket.socket(fileno=fd)
        request, descriptors = control_channel.receive_with_descriptors(host)
        if request is not None:
            _serve(host, jail, request, descriptors)
    # Boundary: this process can report its errors only here, and must not return into init's code.
    except Exception as error:  # noqa: BLE001
        os.write(2, f"the session's file helper failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def refuse(fd: int, error: OSError) -> None:
    """Answer the host on socket `fd`, which is closed, that no helper can start."""
    with socket.socket(fileno=fd) as host:
        # unix(7): closing a socket with unread data resets the other end, including the answer.
        host.recv(1)
        control_channel.send(host, {"errno": error.errno})


def _serve(
    host: socket.socket, jail: Jail, request: control_channel.Message, descriptors: list[int]
) -> None:
    at = 0  # of several files, the current one
    try:
        root = workspace_files.root(jail)
        if request["op"] == "get":
            control_channel.send(host, {}, (workspace_files.open_file(root, request["names"]),))
        elif request["op"] == "each":
            _open_each(host, root)
        elif request["op"] == "put":
            offset = 0
            for names, size in request["files"]:
                content = workspace_files.FileContent(descriptors[0], offset, size)
                workspace_files.store(root, names, content, request["token"])
                offset, at = offset + size, at + 1
            control_channel.send(host, {})
        else:
            _list(host, workspace_files.DirectoryListing(root, request["names"], request["limit"]))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the caller has left
    except OSError as error:
        control_channel.send(host, {"errno": error.errno or EIO, "at": at})


def _open_each(host: socket.socket, root: int) -> None:
    """Open files at the host's requests, one after the other."""
    answer: control_channel.Message = {}
    opened: tuple[int, ...] = ()
    while True:
        control_channel.send(host, answer, opened)
        for fd in opened:
            os.close(fd)
        request, _ = control_channel.receive_with_descriptors(host)
        if request is None:
            return
        try:
            answer, opened = {}, (workspace_files.open_file(root, request["names"]),)
        except OSError as error:
            answer, opened = {"errno": error.errno or EIO}, ()


def _list(host: socket.socket, listing: workspace_files.DirectoryListing) -> None:
    for rows in _batches(listing.rows()):
        control_channel.send(host, {"rows": rows})
    control_channel.send(host, {"complete": listing.complete})


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(os.fsencode(row[0])) * 6 + 80  # as JSON no byte takes more
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

"""The warm parent of the bare-fork floor: `python -I bare_fork_parent.py FD MODULE...`.

Holds the modules that our zygote holds and little more, so that a fork copies page tables of the
same size, and freezes them as it does. Forks a child per request and reaps one when told to.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import socket
import sys
from collections.abc import Sequence

MODULES = ("repl_sandbox.zygote.main", "repl_sandbox.worker.main")  # what our zygote holds
_REQUEST_BYTES = 1 << 16


def main(fd: int, preload: Sequence[str]) -> None:
    """Load, freeze and serve until the other end of `fd` closes."""
    for name in (*MODULES, *preload):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=fd)
    requests.send(b"ready")
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 16, 2)
        if not request:
            return
        if request == b"reap":
            os.wait()
            requests.send(b"reaped")
        elif os.fork() == 0:
            requests.close()
            _serve(request, fds)
            os._exit(0)
        for received in fds:
            os.close(received)


def _serve(request: bytes, fds: list[int]) -> None:
    if request == b"pipes":
        _serve_pipes(*fds)
    else:
        _serve_session(socket.socket(fileno=fds[0]))


def _serve_session(host: socket.socket) -> None:
    namespace: dict[str, object] = {}
    while True:
        request, fds, _, _ = socket.recv_fds(host, _REQUEST_BYTES, 1)
        if not request:
            return
        if fds:
            namespace["context"] = text = _decoded(fds[0])
            host.send(b"%d" % len(text))
        else:
            code = compile(request, "<cell>", "eval")
            host.send(repr(eval(code, namespace)).encode())


def _decoded(fd: int) -> str:
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as view:
        os.close(fd)
        return str(view, "utf-8")


def _serve_pipes(read: int, write: int) -> None:
    namespace: dict[str, object] = {}
    while code := os.read(read, _REQUEST_BYTES):
        exec(compile(code, "<cell>", "exec"), namespace)
        os.write(write, b"done")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

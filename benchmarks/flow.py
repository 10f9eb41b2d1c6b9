"""How far data travels: calls, files and changes of file of the common operations.

`python -m benchmarks.flow` prints a table. A call is one of a function of ours in this process; a
generator that goes on counts as a call. The row of the server counts the server's threads alone.
`tests/test_flow.py` holds the ceilings.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_ROOT = f"{Path(__file__).parents[1]}/"
_PACKAGES = tuple(f"{_ROOT}{name}/" for name in ("sandbox/repl_sandbox", "repl_env", "server"))
_TIMES = 30
_PAUSE = 0.02  # seconds, in which a session makes its snapshot: a step right after it takes longer


class Way(NamedTuple):
    """The way of one operation: our calls, their files, and the changes from file to file."""

    calls: int
    files: int
    changes: int


class Tracer:
    """The files of our calls, in order, while it records; threads that begin later are included."""

    def __init__(self) -> None:
        self._files: list[str] | None = None
        self._left_out: int | None = None

    @contextmanager
    def installed(self) -> Iterator[Tracer]:
        """Trace this thread, and those that begin within the block."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def shortest(self, operation: Callable[[], object], *, elsewhere: bool = False) -> Way:
        """The shortest way of `operation` in some runs, which is the same on a busy machine.

        `elsewhere`: in other threads than this.
        """
        ways: list[Way] = []
        self._left_out = threading.get_ident() if elsewhere else None
        for _ in range(_TIMES):
            files: list[str] = []
            time.sleep(_PAUSE)
            self._files = files
            operation()
            self._files = None
            changes = sum(one != other for one, other in pairwise(files))
            ways.append(Way(len(files), len({*files}), changes))
        return min(ways)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        files = self._files
        if files is not None and event == "call" and threading.get_ident() != self._left_out:
            name = frame.f_code.co_filename
            if name.startswith(_PACKAGES):
                files.append(name)


def measure() -> dict[str, Way]:
    """The way of each operation, by its name."""
    with Tracer().installed() as tracer:
        return {
            name: way for rows in (_environment, _engine, _server) for name, way in rows(tracer)
        }


def _environment(tracer: Tracer) -> Iterator[tuple[str, Way]]:
    from repl_env import LocalREPLEnv

    with LocalREPLEnv() as env:
        env.reset(context="abc", max_iterations=10**6)
        env.execute("x = 1")
        yield "LocalREPLEnv.execute('x = 1')", tracer.shortest(lambda: env.execute("x = 1"))
        yield "LocalREPLEnv.execute('print(x)')", tracer.shortest(lambda: env.execute("print(x)"))
        yield "LocalREPLEnv.reset", tracer.shortest(lambda: env.reset(context="abc"))


def _engine(tracer: Tracer) -> Iterator[tuple[str, Way]]:
    from repl_sandbox import Sandbox

    with Sandbox() as sandbox:
        with sandbox.session() as session:
            session.run("1")
            yield "Session.run('x = 1')", tracer.shortest(lambda: session.run("x = 1"))
        yield "Sandbox.session()", tracer.shortest(lambda: sandbox.session().close())


def _server(tracer: Tracer) -> Iterator[tuple[str, Way]]:
    from websockets.sync.client import connect

    from repl_server.app import create_app
    from repl_server.serving import server as make_server
    from repl_server.settings import Settings

    server = make_server(create_app(Settings(port=0)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with connect(f"ws://127.0.0.1:{port}/ws") as socket:

            def ask(kind: str, **data: Any) -> None:
                socket.send(json.dumps({"type": kind, "data": data}))
                socket.recv()

            ask("reset", context="abc", max_iterations=10**6)
            way = tracer.shortest(lambda: ask("step", code="x = 1"), elsewhere=True)
            yield "a WebSocket step on our server", way
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Print the table."""
    print(f"{'operation':34} {'calls':>6} {'files':>6} {'changes':>8}")
    for name, way in measure().items():
        print(f"{name:34} {way.calls:6} {way.files:6} {way.changes:8}")


if __name__ == "__main__":
    main()

"""Our server, with a place for every client that is measured: `repl-env serve` does the same.

python -m benchmarks.server.ours restart|snapshot
"""

from __future__ import annotations

import sys
from typing import Literal

from repl_server.app import create_app
from repl_server.serving import freeze_gc, raise_open_files, server
from repl_server.settings import Settings

from .listening import listener

_SESSIONS = 1024

if __name__ == "__main__":
    raise_open_files()
    recovery: Literal["restart", "snapshot"] = "restart" if sys.argv[1] == "restart" else "snapshot"
    app = create_app(Settings(recovery=recovery, max_sessions=_SESSIONS))
    app.state.manager.prepare()
    freeze_gc()
    server(app).run([listener()])

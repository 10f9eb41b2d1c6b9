"""Our server, with a place for every client that is measured: `repl-env serve` does the same.

    python -m benchmarks.server.ours restart|snapshot
"""

from __future__ import annotations

import sys

from repl_server.app import create_app
from repl_server.serving import raise_open_files, server
from repl_server.settings import Settings

from .listening import listener

_SESSIONS = 1024

if __name__ == "__main__":
    raise_open_files()
    app = create_app(Settings(recovery=sys.argv[1], max_sessions=_SESSIONS))
    app.state.host.prepare()
    server(app).run([listener()])

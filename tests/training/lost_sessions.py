"""The loss of a session, as by an out-of-memory kill."""

from __future__ import annotations

import os
import select
from typing import Any

from tests.internals import session_links
from tests.waiting import PATIENCE


def lose(session: Any) -> None:
    """Kill a session's init, and wait until the kernel has ended the worker too."""
    links = session_links(session)
    worker = os.pidfd_open(links.worker_pid)
    os.kill(links.pid, 9)
    try:
        assert select.select([worker], [], [], PATIENCE)[0]
    finally:
        os.close(worker)

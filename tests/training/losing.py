"""The loss of a session, as a machine that runs out of memory would cause it."""

from __future__ import annotations

import os
import select
from typing import Any

from tests.waiting import PATIENCE


def lose(session: Any) -> None:
    """Kill a session's init, and wait until the kernel has ended the worker too."""
    links = session._core.links
    worker = os.pidfd_open(links.worker_pid)
    os.kill(links.pid, 9)
    try:
        assert select.select([worker], [], [], PATIENCE)[0]
    finally:
        os.close(worker)

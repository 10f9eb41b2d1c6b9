"""Run the worker's own path in the template, so that no session is the first to run it.

CPython specialises code where it lies as it runs (PEP 659), and fills caches. Done here once, it is
shared by all sessions; done in a session, it copies the pages.
"""

from __future__ import annotations

import os
import socket
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, sigwait
from typing import TYPE_CHECKING

from ..wire.connection import HostConnection
from ..wire.messages import Execute
from . import sources
from .copies import WAKE
from .main import Worker

if TYPE_CHECKING:
    from ..policies.rules import Rules

# CPython 3.11 specialises at the 8th run, later versions earlier.
_RUNS = 16
_CELLS = (b"1 + 1", b"x = 1", b"print('', end='')", b"x")
_READ = 1 << 16


def warm_up(rules: Rules | None = None) -> None:
    """Have a worker that is then forgotten run some cells."""
    ours, theirs = socket.socketpair()
    host = HostConnection()
    worker = Worker(rules)
    with ours:
        worker.open(theirs.detach())
        list(host.receive(ours.recv(_READ)))
        for cell, code in enumerate(_CELLS * _RUNS, 1):
            ours.sendall(host.send(Execute(cell, code)))
            worker.obey()
            list(host.receive(ours.recv(_READ)))
    worker.close()
    sources.forget()
    _wait_for_a_signal()


def _wait_for_a_signal() -> None:
    """As each copy does, and nothing else: the first call looks it up, in all libraries."""
    before = pthread_sigmask(SIG_BLOCK, (WAKE,))
    os.kill(os.getpid(), WAKE)
    sigwait((WAKE,))
    pthread_sigmask(SIG_SETMASK, before)

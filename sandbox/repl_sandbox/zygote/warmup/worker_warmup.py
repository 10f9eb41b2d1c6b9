"""`warm_up_worker`: runs the worker's code in the template, so that no session is the first to run
it.

CPython specialises code in place as it runs (PEP 659), and fills caches. Done here once, all
sessions share it; done in a session, it copies the pages.
"""

from __future__ import annotations

import itertools
import os
import socket
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, sigwait
from typing import TYPE_CHECKING

from ...protocol.connection import HostConnection
from ...protocol.function_schema import FunctionSchema
from ...protocol.messages import Assign, Configure, Execute, HostMessage
from ...protocol.snapshot_signals import WAKE_SIGNAL
from ...snapshots.snapshot_table import SnapshotTable
from ...worker.main import Worker
from ...worker.namespace import cell_sources

if TYPE_CHECKING:
    from ...policies.rules import PolicyRules

# CPython 3.11 specialises at the 8th run, later versions earlier.
_RUNS = 16
_CELLS = ("1 + 1", "x = 1", "print('', end='')", "x", "new_{} = 1")
_CONFIGURE = Configure((FunctionSchema("ask"),), None, "compatible", (Assign("x", "str", b""),))
_READ = 1 << 16


def warm_up_worker(rules: PolicyRules | None = None) -> None:
    """Have a temporary worker run some cells, first without and then with answers."""
    host_end, worker_end = socket.socketpair()
    host = HostConnection()
    worker, table = Worker(rules), SnapshotTable()
    with host_end:
        number = worker_end.detach()
        # As in a session: code is specialised for objects with the same attributes.
        worker.join_session(number, table, None)
        worker.open(number)
        list(host.receive(host_end.recv(_READ)))

        def ask(message: HostMessage) -> None:
            host_end.sendall(host.send(message))
            worker.handle_command()
            list(host.receive(host_end.recv(_READ)))

        cells = itertools.count(1)
        for run in range(_RUNS):
            for code in _CELLS:
                ask(Execute(next(cells), code.format(run).encode()))
        for _ in range(_RUNS):
            host_end.sendall(host.send(_CONFIGURE))  # which is not answered
            worker.handle_command()
            ask(Assign("x", "str", b""))
            ask(Execute(next(cells), b"x"))
    for _ in range(_RUNS):  # the host has left
        worker.serve_prepared()
    worker.close()
    table.close()
    cell_sources.forget()
    _wait_for_a_signal()


def _wait_for_a_signal() -> None:
    """Wait for a signal as each snapshot does: the first call resolves the function in all
    libraries.
    """
    before = pthread_sigmask(SIG_BLOCK, (WAKE_SIGNAL,))
    os.kill(os.getpid(), WAKE_SIGNAL)
    sigwait((WAKE_SIGNAL,))
    pthread_sigmask(SIG_SETMASK, before)

"""pid 1 of a session: trusted, tiny, alive as long as the session is.

It builds the jail, starts the worker, reaps what the session leaves, and does for the host what
only it can do inside: interrupt, kill, start the next worker. It parses nothing but the host's
control messages. When it ends, the kernel ends every process of the session.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
from dataclasses import replace
from typing import NoReturn

from ..errors import IsolationError
from ..jail import libc, rlimits
from ..jail.recipe import INIT, WORKER, Jail, contain
from ..worker.main import Worker
from . import control

# Where the worker's socket sits: above what user code is likely to close in a loop.
_WORKER_FD = 1000


class Init:
    """The session's init process, from the first step of the jail on."""

    def __init__(self, jail: Jail, sock: socket.socket, template: Worker) -> None:
        self._jail = jail
        self._template = template
        self._control = sock
        self._worker = 0
        self._generation = 0
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def start_worker(self, fd: int) -> None:
        """Fork a worker of the next generation on socket `fd`."""
        self._generation += 1
        pid = libc.fork()
        if pid == 0:
            self._be_worker(fd)
        os.close(fd)
        self._worker = pid

    def _be_worker(self, fd: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            high = _move_up(fd)
            contain(self._jail, WORKER)
            os.close(self._woken)
            os.close(self._wake)
            self._control.close()
            self._template.serve(high)
        except IsolationError as error:
            report(self._control, error)
        # Boundary: as in be_init.
        except Exception as error:  # noqa: BLE001
            report(
                self._control,
                IsolationError("jailed", "worker", f"{type(error).__name__}: {error}"),
            )
        finally:
            os._exit(1)

    def serve(self) -> NoReturn:
        """Obey the host and reap, until the host closes the control socket."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while True:
            poller.poll()
            self._drain()
            self._reap()
            self._obey()

    def _drain(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        """Collect the dead; if the worker is one of them, end what it left and tell the host."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._worker:
                self._worker = 0
                self._kill_all()
                notice = {
                    "died": self._generation,
                    "status": status,
                    "cpu": usage.ru_utime + usage.ru_stime,
                }
                control.send(self._control, notice)

    def _kill_all(self) -> None:
        """SIGKILL to every other process of the session, and wait until none is left."""
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        while True:
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                return

    def _obey(self) -> None:
        try:
            message, descriptors = self._receive()
        except BlockingIOError:
            return
        if message is None:
            os._exit(0)
        if message["op"] == "interrupt":
            # init is the parent, so the pid cannot have been given to another process.
            if self._worker:
                os.kill(self._worker, signal.SIGINT)
            control.send(self._control, {"interrupted": message["cell"]})
        elif message["op"] == "kill":
            if self._worker:
                os.kill(self._worker, signal.SIGKILL)
        elif message["op"] == "start":
            self._jail = replace(self._jail, rlimits=rlimits.plan(message["rlimits"]))
            self.start_worker(descriptors[0])

    def _receive(self) -> tuple[control.Message | None, list[int]]:
        self._control.setblocking(False)
        try:
            return control.receive_with_descriptors(self._control)
        finally:
            self._control.setblocking(True)


def _move_up(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _WORKER_FD)
    os.close(fd)
    return high


def report(sock: socket.socket, error: IsolationError) -> None:
    """Tell the host which step failed."""
    control.send(sock, {"failed": error.step, "message": str(error)})


def be_init(jail: Jail, descriptors: tuple[int, int, int, int], template: Worker) -> NoReturn:
    """Be the init of a new session; `descriptors`: control, worker socket, stdout, stderr.

    `template` is a worker that was made before the fork and serves in a fork of this process.
    """
    control_fd, worker_fd, stdout, stderr = descriptors
    sock = socket.socket(fileno=control_fd)
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        contain(replace(jail, kept={0, 1, 2, control_fd, worker_fd, *jail.kept}), INIT)
        init = Init(jail, sock, template)
        init.start_worker(worker_fd)
        init.serve()
    except IsolationError as error:
        report(sock, error)
    # Boundary: this process has nowhere else to say what went wrong in it.
    except Exception as error:  # noqa: BLE001
        report(sock, IsolationError("jailed", "init", f"{type(error).__name__}: {error}"))
    finally:
        # Whatever happened, this process must not return into the zygote's code.
        os._exit(1)

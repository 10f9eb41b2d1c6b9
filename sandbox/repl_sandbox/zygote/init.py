"""init of a session: trusted, tiny, alive as long as the session is.

It starts the workers, which build the jail around themselves, reaps what the session leaves, and
does for the host what only it can do inside: interrupt, kill, start the next worker. It parses
nothing but the host's control messages. In tier `jailed` it is pid 1, and when it ends, the kernel
ends all of the session. In the others it does that itself, and removes the session's directory.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import fcntl
import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from functools import cached_property
from typing import NoReturn

from ..errors import IsolationError
from ..jail import folders, libc, processes, rlimits, users
from ..jail.recipe import BIRTH, RECIPES, Jail, Step, contain
from ..worker.copies import Recovery
from ..worker.main import Worker
from ..worker.tracebacks import show_files_below
from . import clerk, control
from .revival import Revival

# Where the sockets of the worker and of its copies sit: above what code is likely to close in a
# loop.
_WORKER_FD = 1000

# Removes the directory of an ordinary session many times over. The rest is left to the zygote.
_REMOVE_SECONDS = 0.05


class Init:
    """The session's init process; `worker` is the pid of its first worker."""

    def __init__(
        self,
        jail: Jail,
        control_fd: int,
        template: Worker,
        worker: int,
        revival: Revival | None,
    ) -> None:
        self._jail = jail
        self._revival = revival
        self._template = template
        self._control_fd = control_fd
        self._worker = worker
        self._generation = 1
        self._woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._ending = False
        self._overfull = False
        if jail.folder:
            _signal.signal(_signal.SIGTERM, self._note_end)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])

    @cached_property
    def _control(self) -> socket.socket:
        # Made when there is something to read or to say: most sessions end before that.
        return control.open_end(self._control_fd)

    def _note_end(self, number: int, frame: object) -> None:
        self._ending = True

    def _start_worker(self, fd: int) -> None:
        """Fork a worker of the next generation on socket `fd`."""
        self._generation += 1
        pid = libc.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            _be_worker(
                self._jail,
                RECIPES[self._jail.tier].worker,
                self._control_fd,
                fd,
                self._template,
                self._revival,
            )
        os.close(fd)
        self._worker = pid

    def _start_clerk(self, fd: int) -> None:
        """Fork a clerk for the host's other end of socket `fd`."""
        # Of a worker that died first: ending what it left would end the clerk too.
        self._reap()
        try:
            pid = libc.fork()
        except OSError as error:
            clerk.refuse(fd, error)
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            clerk.be_clerk(self._jail, fd)
        os.close(fd)
        if self._revival is not None:
            self._revival.trusted.add(pid)

    def serve(self) -> NoReturn:
        """Obey the host and reap, until the host closes the control socket."""
        poller = select.poll()
        poller.register(self._control_fd, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        if self._revival is not None:
            poller.register(self._revival, select.POLLIN)
        while True:
            # First, for the first worker may have died before its death could wake anybody.
            self._reap()
            if self._ending:
                self._end()
            # After each cell a copy of the worker ends: nothing is asked that need not be.
            for fd, _ in poller.poll():
                if fd == self._woken:
                    self._drain()
                elif fd == self._control_fd:
                    self._obey()
                elif self._revival is not None:
                    self._revival.hear()

    def _end(self) -> NoReturn:
        """End the session, whole."""
        if self._jail.folder:
            self._kill_all()
            # Whoever waits for this process need not wait for a million files.
            folders.remove(self._jail.folder, _REMOVE_SECONDS)
        os._exit(0)

    def _drain(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        """Collect the dead; if the worker is one of them, end what it left and tell the host."""
        while dead := _first_dead():
            if dead != self._worker:
                # What wait4 makes besides is much more than what waits for it.
                os.waitpid(dead, 0)
                if self._revival is not None:
                    self._revival.trusted.discard(dead)
            else:
                _, status, usage = os.wait4(dead, 0)
                self._worker = 0
                if self._revival is None:
                    self._kill_all()
                else:
                    self._revival.halt()
                self._make_room()
                notice = {
                    "died": self._generation,
                    "status": status,
                    "cpu": usage.ru_utime + usage.ru_stime,
                }
                control.send(self._control, notice)

    def _revive(self, revival: Revival, message: control.Message, fd: int) -> None:
        """Let the copy that the host wants be the worker; all that ran since it was made ends."""
        revived = revival.wake(self._worker, message["cell"], message["cpu_left"], fd)
        os.close(fd)
        if revived.pid:
            self._generation += 1
        died = self._worker if revived.ended and not revived.pid else 0
        if revived.ended:
            self._worker = revived.pid
        answer = {"revived": bool(revived.pid), "cpu": revived.cpu, "lost": revived.lost}
        control.send(self._control, answer)
        if died:  # and its copy as well: there is nobody to go on
            notice = {"died": self._generation, "status": signal.SIGKILL, "cpu": revived.cpu}
            control.send(self._control, notice)

    def _keep(self, revival: Revival, fd: int) -> None:
        """Keep the files of the session as the host, at the other end of `fd`, has left them."""
        with socket.socket(fileno=fd) as host:
            request = control.receive(host)
            if request is not None:
                revival.keep_for_host(request["cell"])
            control.send(host, {})

    def _clear(self, revival: Revival, *, whole: bool) -> None:
        """End all of the session; with `whole`, also undo what it did to its files."""
        if whole:
            control.send(self._control, {"lost": revival.clear()})
        else:
            self._kill_all()

    def _kill_all(self) -> None:
        """SIGKILL to every other process of the session, and wait until none is left."""
        if self._revival is not None:
            self._revival.forget()
        if self._jail.folder:
            processes.end_children()
            return
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        while True:
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                return

    def _make_room(self) -> None:
        """If the directory held more than it may, begin with an empty one."""
        if self._overfull:
            self._overfull = False
            folders.remove(self._jail.folder)
            slot = self._jail.slot
            folders.make(self._jail.folder, None if slot is None else users.own_id(slot))

    def _obey(self) -> None:
        try:
            message, descriptors = self._receive()
        except BlockingIOError:
            return
        if message is None:
            self._end()
        if message["op"] == "interrupt":
            # init is the parent, so the pid cannot have been given to another process.
            if self._worker:
                os.kill(self._worker, signal.SIGINT)
            control.send(self._control, {"interrupted": message["cell"]})
        elif message["op"] == "kill":
            self._overfull = message.get("reason") == "workspace"
            if self._worker:
                os.kill(self._worker, signal.SIGKILL)
        elif message["op"] == "revive" and self._revival is not None:
            self._revive(self._revival, message, descriptors[0])
        elif message["op"] == "start":
            if self._revival is not None:
                self._worker = 0
                self._clear(self._revival, whole=message["files"])
            self._jail.rlimits = rlimits.plan(message["rlimits"])
            self._start_worker(descriptors[0])
        elif message["op"] == "keep" and self._revival is not None:
            self._keep(self._revival, descriptors[0])
        elif message["op"] == "files":
            self._start_clerk(descriptors[0])

    def _receive(self) -> tuple[control.Message | None, list[int]]:
        self._control.setblocking(False)
        try:
            return control.receive_with_descriptors(self._control)
        finally:
            self._control.setblocking(True)


def be_session(jail: Jail, descriptors: tuple[int, int, int, int], template: Worker) -> NoReturn:
    """Be the first process of a new session: fork its first worker at once, then be its init.

    `descriptors`: control, worker socket, stdout, stderr. `template` is a worker that was made
    before the fork and serves in a fork of this process. Nothing but `BIRTH` is done before that
    fork, because every page that this process writes first, the worker would have to copy again.
    """
    control_fd, worker_fd, stdout, stderr = descriptors
    try:
        jail.contained, done = os.pipe2(os.O_CLOEXEC)
        contain(jail, BIRTH)
        revival = None if jail.states < 0 else Revival(jail, _WORKER_FD)
        worker = libc.fork()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        if worker == 0:
            os.close(done)
            steps = RECIPES[jail.tier].first_worker
            _be_worker(jail, steps, control_fd, worker_fd, template, revival)
        jail.kept = {0, 1, 2, control_fd, jail.mapped, done, *(revival or ())}
        contain(jail, RECIPES[jail.tier].init)
        os.write(done, b"1")
        os.close(done)
        jail.contained = -1  # its number may be another descriptor's by the next worker
        Init(jail, control_fd, template, worker, revival).serve()
    # Boundary: this process has nowhere else to say what went wrong in it.
    except Exception as error:  # noqa: BLE001
        _report(control_fd, jail.tier, "init", error)
    finally:
        # Whatever happened, this process must not return into the zygote's code.
        os._exit(1)


def _first_dead() -> int:
    """The child to collect next, 0 if there is none; it makes nothing where there is none."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if ended is None else ended.si_pid


def _be_worker(
    jail: Jail,
    steps: Sequence[Step],
    control_fd: int,
    worker_fd: int,
    template: Worker,
    revival: Revival | None,
) -> NoReturn:
    recovery: Recovery | None = None
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        if jail.folder:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])
        high = fcntl.fcntl(worker_fd, fcntl.F_DUPFD_CLOEXEC, _WORKER_FD)
        jail.kept = {0, 1, 2, control_fd, high, jail.contained}
        if revival is not None:
            recovery = revival.recovery()
            jail.kept.add(recovery.orders.fileno())
        contain(jail, steps)
        # What it found, while nobody else can speak for it: no code of the session has run.
        os.write(control_fd, b'{"held": %b}' % json.dumps(jail.held).encode())
        os.close(control_fd)
        if jail.folder:
            show_files_below(f"{jail.folder}/{folders.WORKSPACE}")
    # Boundary: as in be_session.
    except Exception as error:  # noqa: BLE001
        _report(control_fd, jail.tier, "worker", error)
        os._exit(1)
    try:
        template.serve(high, recovery)
    # Boundary: the session ends with its worker, and its own standard error is what is left to it.
    except Exception as error:  # noqa: BLE001
        os.write(2, f"the session's worker failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _report(control_fd: int, tier: str, who: str, error: Exception) -> None:
    """Tell the host which step failed."""
    if not isinstance(error, IsolationError):
        error = IsolationError(tier, who, f"{type(error).__name__}: {error}")
    control.send(control.open_end(control_fd), control.failure(error))

"""init of a session: trusted, tiny, alive as long as the session is.

It starts the workers, which build the jail around themselves, reaps what the session leaves, and
does for the host what only it can do inside: interrupt, kill, start the next worker. It parses
nothing but the host's control messages. In tier `jailed` it is pid 1, and when it ends, the kernel
ends all of the session. In the others it does that itself, and removes the session's directory.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import fcntl
import itertools
import os
import select
import signal
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from ..errors import IsolationError
from ..jail import folders, forks, processes
from ..jail.delta import MOST_PLACES
from ..jail.recipe import BIRTH, RECIPES, Jail, Step, contain
from ..jail.tracking import Tracking
from ..worker.copies import Recovery
from ..worker.main import Worker
from ..worker.states import States
from ..worker.tracebacks import show_files_below
from . import belonging, control
from .lines import Line, Streams
from .revival import Revival
from .working_set import WorkingSets

# Where the sockets of the worker and of its copies sit: above what code is likely to close in a
# loop.
WORKER_FD = 1000

# So far below the worker's socket lies what tracks its pages.
_TRACKING_BELOW = 50

# Milliseconds between looks whether a worker that is to be ended has made its copy: for so long it
# may do what nobody waits for.
_LOOK = 2

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
        states: States,
        revival: Revival | None,
    ) -> None:
        self._template = template
        self._folder = jail.folder
        self._lines = [Line(self, jail, control_fd, worker, states, revival)]
        self._branches = itertools.count(1)
        self._woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._ending = False
        if jail.folder:
            _signal.signal(_signal.SIGTERM, self._note_end)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])

    def _note_end(self, number: int, frame: object) -> None:
        self._ending = True

    def serve(self) -> NoReturn:
        """Obey the host and reap, until the host has closed every control socket."""
        poller, lines = self.poller(), self._lines
        while True:
            # First, for the first worker may have died before its death could wake anybody.
            self.reap()
            if self._ending:
                self._end()
            if lines is not self._lines:
                poller, lines = self.poller(), self._lines
            ready = poller.poll(_LOOK if any(line.is_ending for line in lines) else None)
            self.hear({fd for fd, _ in ready})

    def hear(self, ready: set[int]) -> None:
        """Do what is asked for on the descriptors that are ready."""
        self._drain()
        for line in self._lines:
            if line.revival is not None:
                line.revival.hear(ready)
            if line.control_fd in ready:
                line.obey()
            if line.is_ending:
                line.end_worker()

    def poller(self) -> select.poll:
        """What waits for all that it has to hear."""
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        for line in self._lines:
            poller.register(line.control_fd, select.POLLIN)
            if line.revival is not None:
                line.revival.files.listen(poller)
        return poller

    def close(self) -> None:
        """Let go of what would wake it; for one that does not serve."""
        for fd in (self._woken, signal.set_wakeup_fd(-1)):
            os.close(fd)

    def _end(self) -> NoReturn:
        """End the session, whole."""
        if self._folder:
            processes.end_children()
            # Whoever waits for this process need not wait for a million files.
            folders.remove(self._folder, _REMOVE_SECONDS)
        os._exit(0)

    def _drain(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass

    def reap(self) -> None:
        """Collect the dead; a line whose worker is one of them learns of it."""
        while pid := _first_dead():
            line = next((line for line in self._lines if line.worker == pid), None)
            if line is not None:
                _, status, usage = os.wait4(pid, 0)
                line.died(status, usage.ru_utime + usage.ru_stime)
                continue
            # What wait4 makes besides is much more than what waits for it: after each cell one of
            # the copies ends.
            os.waitpid(pid, 0)
            for line in self._lines:
                if line.revival is not None:
                    line.revival.trusted.discard(pid)

    @property
    def lines(self) -> Sequence[Line]:
        """All lines of the session."""
        return self._lines

    def fork(self) -> int:
        """Fork; 0 in the child, which is not woken by signals of init's."""
        pid = forks.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
        return pid

    def be_worker(self, line: Line, fd: int) -> NoReturn:
        """Be the next worker of `line`, on socket `fd`."""
        if line.streams is not None:
            os.dup2(line.streams.stdout, 1)
            os.dup2(line.streams.stderr, 2)
        steps = RECIPES[line.jail.tier].worker
        fds = line.control_fd, fd
        _be_worker(line.jail, steps, *fds, self._template, line.states, line.revival)

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def branch(self, line: Line, message: control.Message, descriptors: Sequence[int]) -> bool:
        """Have the copy made after the cell of `message` fork a branch; whether it did.

        `descriptors`: the branch's control socket, worker socket, stdout, stderr, table of copies.
        """
        control_fd, worker, stdout, stderr, states = descriptors
        place = f"{line.jail.folder or '/tmp'}/branch-{next(self._branches)}"
        branch = None
        if line.revival is not None:
            branch = line.revival.fork_branch(
                message["cell"], message["seed"], place, descriptors[1:]
            )
        for fd in (worker, states):
            os.close(fd)
        if branch is not None:
            pid, revival = branch
            # The word of a copy, for which code may have spoken: no process is of two lines.
            if not any(pid in other.roots | other.copies() for other in self._lines):
                streams = Streams(stdout, stderr)
                made = Line(self, revival.jail, control_fd, pid, revival.states, revival, streams)
                self._change([*self._lines, made])
                return True
            revival.close()
        for fd in (control_fd, stdout, stderr):
            os.close(fd)
        return False

    def leave(self, line: Line) -> None:
        """The host has left `line`; with the last one the session ends."""
        if len(self._lines) == 1:
            self._end()
        if line.streams is None:
            # The first line stands for the session, whose processes those of no branch are.
            line.kill_all()
            line.worker = 0
            line.hang_up()
        else:
            line.close()
        self._change([other for other in self._lines if other is not line])

    def _change(self, lines: list[Line]) -> None:
        """Whose processes are meant by "all" depends on how many lines there are."""
        self._lines = lines
        for line in lines:
            if line.revival is not None:
                alone = len(lines) == 1 and line.streams is None
                line.revival.members = None if alone else partial(self._members, line)

    def _members(self, line: Line) -> list[int]:
        """The living processes of `line`, its copies among them.

        What is of no branch is the first line's, or of nobody when that is gone.
        """
        trusted = {pid for each in self._lines if each.revival for pid in each.revival.trusted}
        return belonging.members(
            {id(each): each.roots | each.copies() for each in self._lines if each.streams},
            id(line) if line.streams else None,
            trusted,
        )


def be_session(
    jail: Jail,
    descriptors: tuple[int, int, int, int],
    done: int,
    states: States,
    template: Worker,
    working_sets: WorkingSets | None,
) -> NoReturn:
    """Be the first process of a new session: fork its first worker at once, then be its init.

    `descriptors`: control, worker socket, stdout, stderr. `done` is the other end of
    `jail.contained`, `states` the page to share with the worker. `template` is a worker that was
    made before the fork and serves in a fork of this process. Nothing but `BIRTH` is done before
    that fork, because every page that this process writes first, the worker would have to copy
    again.
    """
    control_fd, worker_fd, stdout, stderr = descriptors
    try:
        contain(jail, BIRTH)
        revival = None if jail.states < 0 else Revival(jail, WORKER_FD, states)
        worker = forks.fork()
        if working_sets is not None:
            (working_sets.init if worker else working_sets.worker).bring()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        if worker == 0:
            os.close(done)
            steps = RECIPES[jail.tier].first_worker
            fds = control_fd, worker_fd
            has_pages = working_sets is not None
            _be_worker(jail, steps, *fds, template, states, revival, has_pages=has_pages)
        jail.kept = {0, 1, 2, control_fd, jail.mapped, done, *(revival or ())}
        contain(jail, RECIPES[jail.tier].init)
        os.write(done, b"1")
        os.close(done)
        jail.contained = -1  # its number may be another descriptor's by the next worker
        Init(jail, control_fd, template, worker, states, revival).serve()
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
    states: States,
    revival: Revival | None,
    *,
    has_pages: bool = False,
) -> NoReturn:
    recovery: Recovery | None = None
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        if jail.folder:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])
        high = fcntl.fcntl(worker_fd, fcntl.F_DUPFD_CLOEXEC, WORKER_FD)
        jail.kept = {0, 1, 2, control_fd, high, jail.contained}
        if revival is not None:
            if jail.tier == "jailed" and jail.states < MOST_PLACES:
                # Above all that a copy keeps open, below what the limit of files may be.
                jail.tracking = Tracking(high - _TRACKING_BELOW)
            recovery = revival.recovery()
            jail.kept.add(recovery.orders.fileno())
        contain(jail, steps)
        # What it found, while nobody else can speak for it: no code of the session has run.
        os.write(control_fd, control.held(jail.held))
        os.close(control_fd)
        if jail.folder:
            show_files_below(jail.home or f"{jail.folder}/{folders.WORKSPACE}")
    # Boundary: as in be_session.
    except Exception as error:  # noqa: BLE001
        _report(control_fd, jail.tier, "worker", error)
        os._exit(1)
    try:
        template.serve(high, states, recovery, has_pages=has_pages)
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

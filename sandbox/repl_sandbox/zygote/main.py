"""`Zygote`: forks sessions from its template at the host's requests, until the host is gone.

Started by exec with a fixed environment, never by forking the host. It has one thread and one
socket; end of file on that socket ends it, however the host ends.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from ..errors import IsolationError, SandboxError
from ..jail import processes, rlimits, session_directory, steps
from ..jail.reserved_descriptors import MIN_FILES
from ..native import forks
from ..native.forks import fork
from ..protocol import control
from ..types import Policy
from . import fork_limiter
from .fork_limiter import LimiterLink
from .networks import NetworkNamespacePool
from .spawn import SessionSpawner
from .template import SealedTemplate, build, grow

# `TeardownQueue`: sessions that are ending, until all their processes are gone.
#
# Ending a session takes as long as starting one, so the zygote does not wait for it: a descriptor
# of init reports the end, polled with the zygote's other input.

# Seconds. Ending a session takes milliseconds, or as long as the kernel needs to free its memory.
_TIMEOUT = 10.0
# Each needs a descriptor, of which a process has 1,024 by default.
_MAX_SESSIONS = 128


@dataclass(slots=True)
class SessionTeardown:
    """One ending session. `requests` are the requests to answer when it has ended."""

    session: int
    pid: int
    pidfd: int
    deadline: float | None  # by time.monotonic: its init has had too long then
    requests: list[int] = field(default_factory=list)


class TeardownQueue:
    """The ending sessions of one zygote. Their descriptors, and that of `host`, are in `poller`.

    If one has to end before the next can, requests of the host wait meanwhile. `jailed`: the kernel
    ends a session with its init; in other tiers the init does that.
    """

    def __init__(self, poller: select.poll, host: int, *, jailed: bool) -> None:
        self._poller = poller
        self._host: int | None = host
        self._jailed = jailed
        self._by_pidfd: dict[int, SessionTeardown] = {}

    def __iter__(self) -> Iterator[SessionTeardown]:
        return iter(self._by_pidfd.values())

    @property
    def full(self) -> bool:
        """True if one has to end before another can start ending."""
        return len(self._by_pidfd) >= _MAX_SESSIONS

    def of(self, session: int) -> SessionTeardown | None:
        """The entry of `session`, if it is ending."""
        return next((each for each in self if each.session == session), None)

    def begin(self, session: int, pid: int) -> SessionTeardown:
        """Tell the init `pid` of `session` to end."""
        # It may have ended by itself; until it is reaped, the pid is not reused.
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL if self._jailed else signal.SIGTERM)
        teardown = SessionTeardown(
            session, pid, pidfd, None if self._jailed else time.monotonic() + _TIMEOUT
        )
        self._by_pidfd[pidfd] = teardown
        self._poller.register(pidfd, select.POLLIN)
        if self.full:
            self._poll_host(0)
        return teardown

    def reap(self, pidfd: int) -> SessionTeardown:
        """Reap the session whose descriptor reports its end."""
        if self.full:
            self._poll_host(select.POLLIN)
        teardown = self._by_pidfd.pop(pidfd)
        os.waitpid(teardown.pid, 0)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        return teardown

    def _poll_host(self, events: int) -> None:
        if self._host is not None:
            self._poller.modify(self._host, events)

    def forget_host(self) -> None:
        """Forget the host, which is gone."""
        if self._host is not None:
            self._poller.unregister(self._host)
            self._host = None

    def timeout_ms(self) -> float | None:
        """Milliseconds until `kill_overdue` has something to do; None if never."""
        if self._jailed:
            return None
        deadline = [teardown.deadline for teardown in self if teardown.deadline is not None]
        return max(0.0, min(deadline) - time.monotonic()) * 1000 if deadline else None

    def kill_overdue(self) -> None:
        """Kill each init that has taken too long."""
        if self._jailed:
            return
        now = time.monotonic()
        for teardown in self:
            if teardown.deadline is not None and teardown.deadline <= now:
                os.kill(teardown.pid, signal.SIGKILL)
                teardown.deadline = None

    def wait(self) -> None:
        """Wait until a session has ended or is overdue. Other input waits meanwhile."""
        for fd, _ in self._poller.poll(self.timeout_ms()):
            if fd in self._by_pidfd:
                self.reap(fd)
        self.kill_overdue()

    def finish(self) -> None:
        """Wait until all sessions have ended."""
        while self._by_pidfd:
            self.wait()

    def forked(self) -> None:
        """In a fork of the zygote: close the descriptors; the sessions are the parent's."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)


class Zygote:
    """Serves one host."""

    def __init__(
        self,
        host: socket.socket,
        template: SealedTemplate,
        networks: NetworkNamespacePool | None,
        limiter: LimiterLink | None = None,
    ) -> None:
        self._host = host
        self._limiter = limiter
        self._template = template
        self._networks = networks
        self._spawner = SessionSpawner(template, networks, limiter, self._end_orphans)
        self._poller = select.poll()
        self._poller.register(host, select.POLLIN)
        self._teardowns = TeardownQueue(
            self._poller, host.fileno(), jailed=template.tier == "jailed"
        )
        self._removing: dict[int, int] = {}  # pidfd: pid of a process that removes a directory
        self._nested: set[int] = set()  # zygotes that were forked from this one

    def serve(self) -> NoReturn:
        """Answer requests until end of file, and report ends."""
        host, teardowns, networks = self._host.fileno(), self._teardowns, self._networks
        while True:
            timeout_ms = teardowns.timeout_ms() if networks is None else networks.timeout_ms()
            ready = self._poller.poll(timeout_ms)
            for fd, _ in ready:
                if fd == host:
                    self._receive()
                elif fd in self._removing:
                    self._is_removed(fd)
                else:
                    self._reap_session(fd)
            teardowns.kill_overdue()
            if networks is not None and not ready:
                networks.release_free()

    def _receive(self) -> None:
        request, descriptors = control.receive_request(self._host)
        if not request:
            self._leave()
        try:
            self._answer(request, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _reply(self, answer: bytes) -> None:
        try:
            self._host.send(answer)
        except OSError:
            self._leave()

    def _answer(self, request: bytes, descriptors: list[int]) -> None:
        kind, number, rest = request.split(b" ", 2)
        if kind == b"end":
            self._end(int(rest), int(number))
        elif kind == b"ask":
            self._reply(
                control.answer_to(int(number), self._handle_rare(json.loads(rest), descriptors))
            )
        else:
            try:
                self._spawner.spawn(int(number), rest, descriptors)
            except OSError as error:
                _report_failure(
                    descriptors[0], IsolationError(self._template.tier, "zygote", str(error))
                )
            except IsolationError as error:
                _report_failure(descriptors[0], error)

    def _handle_rare(self, question: control.Message, descriptors: list[int]) -> control.Message:
        """Handle a rare request; return the answer."""
        if question["op"] == "nest":
            return self._nest(question, descriptors)
        return {"gone": self._forget(question["nested"])}

    def _nest(self, message: control.Message, descriptors: list[int]) -> control.Message:
        """Fork a template with shared objects; its zygote answers for itself from then on."""
        tier = self._template.tier
        if processes.other_threads():
            error = IsolationError(tier, "single thread", "the template has more than one")
            return control.failure(error)
        if self._networks is not None:
            self._networks.release_free()  # the child needs some, and their number is limited
        try:
            pid = fork()
        except OSError as error:
            return control.failure(IsolationError(tier, "zygote", str(error)))
        if pid == 0:
            self._run_nested(message, *descriptors)
        self._nested.add(pid)
        return {"pid": pid}

    def _run_nested(self, message: control.Message, fd: int, parcel: int) -> NoReturn:
        try:
            # The parent's conversation ends with the parent, whose waiting objects are its own.
            self._host.close()
            self._teardowns.forked()
            for pidfd in self._removing:
                os.close(pidfd)
            self._spawner.drop()
            if self._networks is not None:
                self._networks.forked()
            host = socket.socket(fileno=fd)
            try:
                template = grow(self._template, parcel, message["manifest"])
            # Boundary: only this process can report the error, and the parent's code must not
            # continue here.
            except Exception as error:  # noqa: BLE001
                control.send(host, control.refusal(error))
            else:
                control.send(host, {"data_segment": template.data_segment})
                Zygote(host, template, self._networks, self._limiter).serve()
        finally:
            os._exit(1)

    def _forget(self, pid: int) -> bool:
        if pid not in self._nested:
            return False
        self._nested.discard(pid)
        os.waitpid(pid, 0)
        return True

    def _end(self, session: int, number: int) -> None:
        """End what request `session` started; request `number` is answered when all of it is
        gone.
        """
        pid = self._spawner.sessions.pop(session, None)
        teardowns = self._teardowns
        teardown = teardowns.of(session) if pid is None else teardowns.begin(session, pid)
        if number == control.UNANSWERED:
            return
        if teardown is None:
            self._reply(control.gone(number, known=False))
        else:
            teardown.requests.append(number)

    def _reap_session(self, pidfd: int) -> None:
        teardown = self._teardowns.reap(pidfd)
        if self._networks is not None:
            self._networks.recover(teardown.session)
        else:
            self._end_orphans()
            self._remove(f"{self._template.base}/{teardown.session}")
        for number in teardown.requests:
            self._reply(control.gone(number, known=True))

    def _remove(self, folder: str) -> None:
        """Remove an init's directory, concurrently with other requests."""
        if session_directory.remove(folder, 0):
            return
        pid = fork()
        if pid == 0:
            processes.die_with_parent()
            session_directory.remove(folder)
            os._exit(0)
        pidfd = os.pidfd_open(pid)
        self._removing[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)

    def _is_removed(self, pidfd: int) -> None:
        """Reap a process that has removed a directory."""
        self._poller.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._removing.pop(pidfd), 0)

    def _end_orphans(self) -> None:
        """End the sessions of inits that were killed: their processes are this process's children
        by then.
        """
        sessions, ending = self._spawner.sessions.values(), (each.pid for each in self._teardowns)
        excluded = {*sessions, *ending, *self._removing.values(), *self._nested}
        if self._limiter is not None:
            excluded.add(self._limiter.pid)
        processes.end_children(excluded)

    def _leave(self) -> NoReturn:
        """Handle the host's end: end the sessions if the kernel does not end them with this
        process.
        """
        if self._template.base and self._template.tier != "alone":
            self._teardowns.forget_host()
            sessions = [*self._spawner.sessions, *(each.session for each in self._teardowns)]
            for session, pid in self._spawner.sessions.items():
                while self._teardowns.full:
                    self._teardowns.wait()
                self._teardowns.begin(session, pid)
            self._teardowns.finish()
            processes.end_children()
            if self._template.nested:
                for session in sessions:
                    session_directory.remove(f"{self._template.base}/{session}")
            else:
                session_directory.remove_base(self._template.base)
        os._exit(0)


def _report_failure(control_fd: int, error: IsolationError) -> None:
    """Report through a session's control socket why there is no session."""
    with socket.socket(fileno=os.dup(control_fd)) as session:
        try:
            control.send(session, control.failure(error))
        except OSError:
            pass  # the host has left, or init reported first


# Turns the interpreter that `boot` started into a zygote, or reports why it cannot become one.

# Variables that have had their effect; programs that sessions start do not get them.
_TEMPLATE_VARIABLES = ("LD_BIND_NOW", "GLIBC_TUNABLES")
# Signals that each interpreter ignores, and SIGINT here.
_IGNORED = {signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ}


def refuse(fd: int, error: IsolationError) -> NoReturn:
    """Answer on socket `fd`, to the request that configures the zygote, that it cannot start."""
    with socket.socket(fileno=fd) as host:
        if (configuration := control.receive(host)) is not None:
            _reply(
                host,
                control.answer_to(configuration["number"], control.failure(error)),
            )
    os._exit(1)


def serve(fd: int, tier: str, *, privileged: bool) -> NoReturn:
    """Be the zygote on socket `fd`: the first message configures it, the answer reports the result.

    `tier`: the tier of its sessions. `privileged`: this process is root on the host, and not only
    in a user namespace of its own.
    """
    host = socket.socket(fileno=fd)
    _prepare_process(tier)
    configuration = control.receive(host)
    if configuration is None:
        os._exit(0)
    number = configuration["number"]
    try:
        _check_descriptors()
        template = _build(configuration, tier, privileged=privileged)
        networks = _networks() if tier == "jailed" else None
    except SandboxError as error:
        _reply(host, control.answer_to(number, control.refusal(error)))
        os._exit(1)
    facts = _facts_of(template)
    limiter = None if template.tier == "jailed" else fork_limiter.start(host)
    _reply(host, control.answer_to(number, facts))
    Zygote(host, template, networks, limiter).serve()


def _prepare_process(tier: str) -> None:
    """Reset the environment and the signals of this process, which sessions inherit."""
    for name in _TEMPLATE_VARIABLES:
        os.environ.pop(name, None)
    _reset_signals()
    signal.signal(signal.SIGCHLD, _wake)
    if tier != "process":
        # Roots and directories are made here for other uids, which a mask of 077 would lock out.
        os.umask(0o022)
    if tier != "jailed":
        # The zygote's signal to an init to end; each init handles it when it is ready to.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _build(configuration: control.Message, tier: str, *, privileged: bool) -> SealedTemplate:
    policy = None if configuration["policy"] is None else Policy(**configuration["policy"])
    return build(
        configuration["preload"],
        configuration["mounts"],
        tier,
        configuration["place"],
        policy,
        privileged=privileged,
    )


def _facts_of(template: SealedTemplate) -> control.Message:
    """The facts about the template that the host needs."""
    facts = {
        "data_segment": template.data_segment,
        "privileged": template.privileged,
        "base": template.base,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "process_limit": 0
        if template.tier == "jailed" or template.privileged
        else rlimits.process_limit(),
    }
    if template.tier == "alone":
        facts["supports_snapshots"] = forks.makes_siblings()
    return facts


def _wake(signum: int, frame: object) -> None:
    """Do nothing: the signal interrupts a wait, which an ignored signal would not."""


def _reset_signals() -> None:
    """Reset signals as in a new process, whatever the starting process blocks or ignores.

    Sessions inherit the signals: if SIGINT were blocked, cells could not be interrupted, and code
    could not terminate its children.
    """
    # Its sessions set their own handler; the terminal's Ctrl-C is for the host.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in signal.valid_signals() - _IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reply(host: socket.socket, answer_to: bytes) -> None:
    # A host that has left meanwhile is no error; its end of file is read next.
    with suppress(BrokenPipeError, ConnectionResetError):
        host.send(answer_to)


def _check_descriptors() -> None:
    """Raise SandboxError if the limit of descriptors is too low for the sockets of sessions, from
    WORKER on.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < MIN_FILES:  # -1 is no limit
        raise SandboxError(
            f"this process may open {limit} files, and a sandbox needs {MIN_FILES}: "
            f"raise the limit (ulimit -n {MIN_FILES})"
        )


def _networks() -> NetworkNamespacePool:
    try:
        return NetworkNamespacePool()
    except OSError as error:
        raise steps.step_error("namespaces", error) from error

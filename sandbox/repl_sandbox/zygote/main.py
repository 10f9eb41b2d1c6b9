"""`Zygote`: forks sessions from its template at the host's requests, until the host is gone.

Started by exec with a fixed environment, never by forking the host. It has one thread and one
socket; end of file on that socket ends it, however the host ends.
"""

from __future__ import annotations

import json
import os
import select
import socket
from typing import NoReturn

from ..errors import IsolationError
from ..jail import processes, session_directory
from ..native.process_forks import fork
from ..protocol import control_channel
from . import spawn_requests
from .fork_limiter import LimiterLink
from .network_namespaces import NetworkNamespacePool
from .session_spawner import SessionSpawner
from .teardown import TeardownQueue
from .template import nested_template
from .template.sealed_template import SealedTemplate


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
        request, descriptors = spawn_requests.receive(self._host)
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
                spawn_requests.answer_to(
                    int(number), self._handle_rare(json.loads(rest), descriptors)
                )
            )
        else:
            try:
                self._spawner.spawn(int(number), rest, descriptors)
            except OSError as error:
                _report(descriptors[0], IsolationError(self._template.tier, "zygote", str(error)))
            except IsolationError as error:
                _report(descriptors[0], error)

    def _handle_rare(
        self, question: control_channel.Message, descriptors: list[int]
    ) -> control_channel.Message:
        """Handle a rare request; return the answer."""
        if question["op"] == "nest":
            return self._nest(question, descriptors)
        return {"gone": self._forget(question["nested"])}

    def _nest(
        self, message: control_channel.Message, descriptors: list[int]
    ) -> control_channel.Message:
        """Fork a template with shared objects; its zygote answers for itself from then on."""
        tier = self._template.tier
        if processes.thread_count() != 1:
            error = IsolationError(tier, "single thread", "the template has more than one")
            return control_channel.failure(error)
        if self._networks is not None:
            self._networks.release_free()  # the child needs some, and their number is limited
        try:
            pid = fork()
        except OSError as error:
            return control_channel.failure(IsolationError(tier, "zygote", str(error)))
        if pid == 0:
            self._run_nested(message, *descriptors)
        self._nested.add(pid)
        return {"pid": pid}

    def _run_nested(self, message: control_channel.Message, fd: int, parcel: int) -> NoReturn:
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
                template = nested_template.grow(self._template, parcel, message["manifest"])
            # Boundary: only this process can report the error, and the parent's code must not
            # continue here.
            except Exception as error:  # noqa: BLE001
                control_channel.send(host, control_channel.refusal(error))
            else:
                control_channel.send(host, {"data_segment": template.data_segment})
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
        if number == spawn_requests.UNANSWERED:
            return
        if teardown is None:
            self._reply(spawn_requests.gone(number, known=False))
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
            self._reply(spawn_requests.gone(number, known=True))

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


def _report(control_fd: int, error: IsolationError) -> None:
    """Report through a session's control socket why there is no session."""
    with socket.socket(fileno=os.dup(control_fd)) as session:
        try:
            control_channel.send(session, control_channel.failure(error))
        except OSError:
            pass  # the host has left, or init reported first

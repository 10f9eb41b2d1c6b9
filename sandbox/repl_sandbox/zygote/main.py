"""`Zygote`: forks sessions from its template at the host's requests, until the host is gone.

Started by exec with a fixed environment, never by forking the host. It has one thread and one
socket; end of file on that socket ends it, however the host ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from errno import EACCES, EBUSY, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP
from typing import NoReturn

from ..errors import IsolationError
from ..jail import processes, remedies, rlimits, session_directory, users
from ..jail.namespaces import FLAGS
from ..jail.recipe.step_functions import DONE
from ..jail.session_jail import Jail
from ..native.libc import CLONE_NEWCGROUP
from ..native.process_forks import fork
from ..native.spawn import NO_CGROUP
from ..protocol import control_channel
from . import spawn_requests
from .fork_limiter import LimiterLink
from .network_namespaces import NetworkNamespacePool
from .session_spawn import SessionSpawn
from .teardown import TeardownQueue
from .template import nested_template
from .template.sealed_template import SealedTemplate

# clone3(2): the cgroup for the child is unusable, or the call does not exist, as under some seccomp
# filters of container engines.
_NOT_INTO_GROUP = (EACCES, EBUSY, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP)


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
        self._session_spawn: SessionSpawn | None = None  # of sessions like the one before
        self._key: tuple[object, ...] = ()  # the key of the current ones
        self._settings = b""  # of the last session
        self._workspace = 0
        self._rlimits: list[tuple[int, tuple[int, int]]] = []
        self._snapshots = -1
        self._max_processes = 0
        self._sessions: dict[int, int] = {}  # number of the request: pid of the init
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
                self._spawn(int(number), rest, descriptors)
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
        """Fork a template with objects in it, which then answers for itself."""
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
            self._drop_spawn()
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

    def _spawn(self, number: int, request: bytes, descriptors: list[int]) -> None:
        template = self._template
        slot, group, settings = request.split(b" ", 2)
        if processes.thread_count() != 1:
            raise IsolationError(template.tier, "single thread", "the template has more than one")
        if settings != self._settings:
            self._read_settings(settings)
        own_slot = int(slot) if template.privileged else None
        if self._networks is None:
            self._spawn_child(number, own_slot, descriptors)
            return
        key = group, len(descriptors), settings
        if key != self._key or self._session_spawn is None:
            self._drop_spawn()
            self._session_spawn, self._key = self._prepare_spawn(group, descriptors), key
        self._session_spawn.jail.slot = own_slot
        self._spawn_isolated(number, self._session_spawn, int(group), descriptors, self._networks)

    def _jail(self, slot: int | None, folder: str = "") -> Jail:
        template = self._template
        return Jail(
            slot,
            self._workspace,
            self._rlimits,
            template.last_capability,
            template.final_filter,
            template.files,
            template.tier,
            folder,
            template.interpreter,
            covered=template.covered,
            snapshots=self._snapshots,
            forks=None if self._limiter is None else self._limiter.of(self._max_processes),
        )

    def _spawn_child(self, number: int, slot: int | None, descriptors: list[int]) -> None:
        """Spawn a session as a child among others."""
        jail = self._jail(slot, f"{self._template.base}/{number}")
        session_spawn = SessionSpawn(jail, self._template.worker, b"")
        try:
            self._end_orphans()
            self._sessions[number], written = session_spawn.spawn(descriptors, 0)
            os.close(written)
        finally:
            session_spawn.close()

    def _prepare_spawn(self, group: bytes, descriptors: list[int]) -> SessionSpawn:
        """Return the prepared spawn for sessions in namespaces of their own."""
        template, version = self._template, int(group)
        # Any slot: the id maps are written when a session is spawned.
        jail = self._jail(0 if template.privileged else None)
        jail.groups = None if not version else 0 if version == 2 else len(descriptors[4:])
        session_spawn = SessionSpawn(jail, template.worker, template.ready)
        session_spawn.prepare()
        return session_spawn

    def _drop_spawn(self) -> None:
        """Drop everything that later sessions could share with earlier ones."""
        if self._session_spawn is not None:
            self._session_spawn.close()
            self._session_spawn = None

    def _spawn_isolated(
        self,
        number: int,
        session_spawn: SessionSpawn,
        version: int,
        descriptors: list[int],
        networks: NetworkNamespacePool,
    ) -> None:
        """Spawn a session into namespaces of its own, and write its id maps."""
        # Each worker enters a cgroup namespace itself, once it is in the cgroup.
        flags = FLAGS & ~CLONE_NEWCGROUP if version else FLAGS
        cgroup = descriptors[4] if version == 2 else NO_CGROUP
        try:
            networks.enter(number)
            self._sessions[number], written = session_spawn.spawn(descriptors, flags, cgroup)
        except OSError as error:
            networks.forget(number)
            networks.leave()
            step = "cgroup" if error.errno in _NOT_INTO_GROUP else "namespaces"
            raise remedies.step_error(step, error) from error
        networks.leave()
        try:
            self._write_id_maps(number, session_spawn.jail.slot, written)
        finally:
            os.close(written)

    def _read_settings(self, settings: bytes) -> None:
        """Read the settings that most sessions of a template share."""
        read = spawn_requests.read_settings(settings)
        self._workspace, self._rlimits = read["workspace"], rlimits.plan(read["rlimits"])
        self._snapshots, self._max_processes = read["snapshots"], read["processes"]
        self._settings = settings

    def _write_id_maps(self, session: int, slot: int | None, written: int) -> None:
        """Write the id maps of the session's init, which waits for a byte in the pipe."""
        try:
            users.map_session(self._sessions[session], slot)
        except OSError as error:
            pid = self._sessions.pop(session)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if self._networks is not None:
                self._networks.forget(session)
            raise remedies.step_error("id maps", error) from error
        try:
            os.write(written, 2 * DONE)  # for init and for the first worker
        except BrokenPipeError:
            pass  # init failed in an earlier step, and has reported it to the host

    def _end(self, session: int, number: int) -> None:
        """End what request `session` started; request `number` is answered when all of it is
        gone.
        """
        pid = self._sessions.pop(session, None)
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
        teardown = (each.pid for each in self._teardowns)
        excluded = {*self._sessions.values(), *teardown, *self._removing.values(), *self._nested}
        if self._limiter is not None:
            excluded.add(self._limiter.pid)
        processes.end_children(excluded)

    def _leave(self) -> NoReturn:
        """Handle the host's end: end the sessions if the kernel does not end them with this
        process.
        """
        if self._template.base and self._template.tier != "alone":
            self._teardowns.forget_host()
            sessions = [*self._sessions, *(each.session for each in self._teardowns)]
            for session, pid in self._sessions.items():
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

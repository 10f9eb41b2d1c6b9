"""`SessionSpawner`: spawns the sessions that a host requests, by the settings of each request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from errno import EACCES, EBUSY, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP

from ..errors import IsolationError
from ..jail import processes, remedies, rlimits, users
from ..jail.namespaces import FLAGS
from ..jail.recipe.step_functions import DONE
from ..jail.session_jail import Jail
from ..native.libc import CLONE_NEWCGROUP
from ..native.spawn import NO_CGROUP
from . import spawn_requests
from .fork_limiter import LimiterLink
from .network_namespaces import NetworkNamespacePool
from .session_spawn import SessionSpawn
from .template.sealed_template import SealedTemplate

# clone3(2): the cgroup for the child is unusable, or the call does not exist, as under some seccomp
# filters of container engines.
_NOT_INTO_GROUP = (EACCES, EBUSY, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP)


class SessionSpawner:
    """Spawns sessions of one template. Sessions with equal settings share the prepared spawn.

    `sessions`: the pids of their inits, by the number of the request. `end_orphans`: called before
    a session is spawned as a child among others.
    """

    def __init__(
        self,
        template: SealedTemplate,
        networks: NetworkNamespacePool | None,
        limiter: LimiterLink | None,
        end_orphans: Callable[[], None],
    ) -> None:
        self._template, self._networks, self._limiter = template, networks, limiter
        self._end_orphans = end_orphans
        self.sessions: dict[int, int] = {}
        self._session_spawn: SessionSpawn | None = None  # of sessions like the one before
        self._key: tuple[object, ...] = ()  # the key of the current ones
        self._settings = b""  # of the last session
        self._workspace = 0
        self._rlimits: list[tuple[int, tuple[int, int]]] = []
        self._snapshots = -1
        self._max_processes = 0

    def spawn(self, number: int, request: bytes, descriptors: list[int]) -> None:
        """Spawn session `number`; `request`, `descriptors`: those of the message `spawn`.

        Raises:
            IsolationError, OSError: a step failed.
        """
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
            self.drop()
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
            self.sessions[number], written = session_spawn.spawn(descriptors, 0)
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

    def drop(self) -> None:
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
            self.sessions[number], written = session_spawn.spawn(descriptors, flags, cgroup)
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
            users.map_session(self.sessions[session], slot)
        except OSError as error:
            pid = self.sessions.pop(session)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if self._networks is not None:
                self._networks.forget(session)
            raise remedies.step_error("id maps", error) from error
        try:
            os.write(written, 2 * DONE)  # for init and for the first worker
        except BrokenPipeError:
            pass  # init failed in an earlier step, and has reported it to the host

"""`SessionSpawn`: spawns sessions: their first processes, and what these do once Python runs.

The first process of a session forks the first worker at once, and is then the session's init. Both
take their steps and wait without running Python (`native/spawn.c`), except for a first worker of
the tiers without namespaces, whose steps are more than system calls.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import _socket
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EACCES, EBUSY, EMFILE, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP
from typing import Final, NoReturn

from ..errors import IsolationError
from ..init.main import Init, complain, limiter_of, report, run_worker
from ..init.rollback import WorkerRollback
from ..init.snapshot_channel import SnapshotChannel
from ..jail import processes, reserved_descriptors, rlimits, slots, steps, users
from ..jail.recipe import RECIPES, SPAWN_STEPS
from ..jail.steps import DONE, Jail, batch, step_error
from ..jail.users import FLAGS
from ..native.forks import NO_CGROUP, Handshake, Role, Spawner
from ..native.libc import CLONE_NEWCGROUP
from ..native.library import StepError
from ..protocol import control
from ..protocol.control import SNAPSHOT_SIGNAL
from ..worker.main import Worker
from ..worker.snapshot_table import SnapshotTable
from ..worker.snapshots import ALL_SIGNALS
from .fork_limiter import LimiterLink
from .networks import NetworkNamespacePool
from .template import SealedTemplate

# A worker with SNAPSHOT_SIGNAL blocked would count as a snapshot.
_MASK: Final = sum(1 << (number - 1) for number in ALL_SIGNALS if number != SNAPSHOT_SIGNAL)


def _descriptors_of_init(jail: Jail) -> set[int]:
    descriptors = {
        *reserved_descriptors.STREAMS,
        reserved_descriptors.CONTROL,
        reserved_descriptors.DONE,
        *limiter_of(jail),
    }
    if jail.tier == "jailed":
        descriptors.add(reserved_descriptors.MAPPED)
    if jail.snapshots >= 0:
        descriptors |= {
            reserved_descriptors.CHANNEL_INIT_END,
            reserved_descriptors.CHANNEL_WORKER_END,
        }
    return descriptors


def _descriptors_of_worker(jail: Jail) -> set[int]:
    descriptors = {
        *reserved_descriptors.STREAMS,
        reserved_descriptors.CONTROL,
        reserved_descriptors.CONTAINED,
        reserved_descriptors.WORKER,
    }
    if jail.snapshots >= 0:
        descriptors.add(reserved_descriptors.CHANNEL_WORKER_END)
    return descriptors


class SessionSpawn:
    """Spawns sessions with equal settings, one after the other: made once, used for all of them.

    `jail.slot` may be changed between two of them.
    """

    def __init__(self, jail: Jail, worker: Worker, ready: bytes) -> None:
        """`worker`: made before the fork, serves in a child of this process. `ready`: its first
        message.

        Without that message a first worker takes its steps in Python.
        """
        self._table = SnapshotTable()
        jail.shared = self._table.address
        self.jail, self._worker, self._sends_ready = jail, worker, bool(ready)
        self._rollback = None
        if jail.snapshots >= 0:
            channel = SnapshotChannel.at(
                reserved_descriptors.WORKER,
                reserved_descriptors.CHANNEL_INIT_END,
                reserved_descriptors.CHANNEL_WORKER_END,
            )
            self._rollback = WorkerRollback(jail, reserved_descriptors.WORKER, self._table, channel)
        recipe = RECIPES[jail.tier]
        spawn_steps = batch(jail, SPAWN_STEPS)
        init = batch(replace(jail, descriptors=_descriptors_of_init(jail)), recipe.init)
        steps = recipe.first_worker if ready else ()
        first_worker = batch(replace(jail, descriptors=_descriptors_of_worker(jail)), steps)
        self._slots = spawn_steps.slots
        awaited = [reserved_descriptors.CONTROL]
        if self._rollback is not None:
            awaited.append(reserved_descriptors.CHANNEL_INIT_END)
        handshake = Handshake(
            reserved_descriptors.CONTROL,
            reserved_descriptors.WORKER,
            slots.TRIAL,
            control.findings({"landlock": jail.files.abi}),
            control.findings({}),
            ready,
        )
        self._spawner = Spawner(
            spawn_steps,
            init,
            first_worker,
            # In the other tiers it handles a signal that cannot come yet.
            awaited=awaited if ready else (),
            worker_mask=_MASK,
            handshake=handshake if ready else None,
        )

    def prepare(self) -> None:
        """In the zygote: assign the worker to the sessions that are spawned next."""
        if self._sends_ready:
            resources = None if self._rollback is None else self._rollback.resources()
            self._worker.join_session(reserved_descriptors.WORKER, self._table, resources)

    def spawn(
        self, descriptors: Sequence[int], flags: int, cgroup: int = NO_CGROUP
    ) -> tuple[int, int]:
        """Spawn one; return the pid of its init, and the pipe to write to once it has its id maps.

        `descriptors`: its control socket, worker socket, stdout and stderr, and the entrances of
        its cgroups of version 1. `flags`, `cgroup`: as of `Spawner.spawn`.

        Raises:
            OSError: as of clone(2), or there are too many descriptors.
        """
        contained, done = os.pipe2(os.O_CLOEXEC)
        mapped, written = os.pipe2(os.O_CLOEXEC)
        init_end, worker_end = _socket.socketpair()
        try:
            ends = init_end.fileno(), worker_end.fileno()
            self._fill(*descriptors[:4], mapped, written, contained, done, *ends)
            for index in range(self.jail.groups or 0):
                self._slots[slots.group(index)] = descriptors[4 + index]
            pid = self._spawner.spawn(flags, cgroup)
            if pid == 0:
                self._run_session()
        except BaseException:
            os.close(written)
            raise
        finally:
            init_end.close()
            worker_end.close()
            for fd in (contained, done, mapped):
                os.close(fd)
        return pid, written

    def _fill(self, *numbers: int) -> None:
        """Fill the slots of descriptors, in the order of `jail/slots.py`."""
        if max(numbers) >= reserved_descriptors.FIRST:
            raise OSError(EMFILE, "the zygote has too many files open")
        self._slots[: len(numbers)] = list(numbers)

    def close(self) -> None:
        """In the zygote: release the resources. No session shares them."""
        if self._rollback is not None:
            self._rollback.channel.forget()
        self._table.close()

    # ── in the session ────────────────────────────────────────────────────────────────────────

    def _run_session(self) -> NoReturn:
        """Be init, or the first worker, from the first step that needs Python."""
        role, tier = self._spawner.role, self.jail.tier
        try:
            try:
                self._spawner.check()
            except StepError as error:
                raise step_error(error.step, error, tier) from error
            if role == Role.WORKER:
                self._run_worker()
            os.close(reserved_descriptors.DONE)
            Init(
                self.jail,
                reserved_descriptors.CONTROL,
                self._worker,
                self._spawner.worker,
                self._table,
                self._rollback,
            ).serve()
        # Boundary: this process can report its errors only here.
        except Exception as error:  # noqa: BLE001
            report(reserved_descriptors.CONTROL, tier, role.name.lower(), error)
        finally:
            # In any case, this process must not return into the zygote's code.
            os._exit(1)

    def _run_worker(self) -> NoReturn:
        if not self._sends_ready:
            run_worker(
                self.jail,
                RECIPES[self.jail.tier].first_worker,
                reserved_descriptors.CONTROL,
                reserved_descriptors.WORKER,
                self._worker,
                self._table,
                self._rollback,
                needed=(reserved_descriptors.CONTAINED,),
            )
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        try:
            self._worker.serve_prepared()
            os._exit(0)
        # Boundary: the session ends with its worker, which can only write to its standard error.
        except Exception as error:  # noqa: BLE001
            complain(error)
        finally:
            os._exit(1)


# `SessionSpawner`: spawns the sessions that a host requests, by the settings of each request.

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
        if processes.other_threads():
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
            raise steps.step_error(step, error) from error
        networks.leave()
        try:
            self._write_id_maps(number, session_spawn.jail.slot, written)
        finally:
            os.close(written)

    def _read_settings(self, settings: bytes) -> None:
        """Read the settings that most sessions of a template share."""
        read = control.read_settings(settings)
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
            raise steps.step_error("id maps", error) from error
        try:
            os.write(written, 2 * DONE)  # for init and for the first worker
        except BrokenPipeError:
            pass  # init failed in an earlier step, and has reported it to the host

"""`SessionSpawn`: spawns sessions: their first processes, and what these do once Python runs.

The first process of a session forks the first worker at once, and is then the session's init. Both
take their steps and wait without running Python (`native/spawn.c`), except for a first worker of
the tiers without namespaces, whose steps are more than system calls.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import _socket
import os
from collections.abc import Sequence
from dataclasses import replace
from errno import EMFILE
from typing import Final, NoReturn

from ..init.supervisor import Init
from ..init.worker_entry import complain, limiter_of, report, run_worker
from ..init.worker_rollback import WorkerRollback
from ..jail import reserved_descriptors
from ..jail.recipe import recipe_slots
from ..jail.recipe.jailed_steps import SPAWN_STEPS
from ..jail.recipe.recipes import RECIPES
from ..jail.recipe.step_execution import batch
from ..jail.remedies import step_error
from ..jail.session_jail import Jail
from ..native.spawn import NO_CGROUP, Handshake, Role, Spawner
from ..native.steps import StepError
from ..protocol import control_channel
from ..protocol.snapshot_signals import SNAPSHOT_SIGNAL
from ..snapshots.snapshot_channel import SnapshotChannel
from ..snapshots.snapshot_processes import ALL_SIGNALS
from ..snapshots.snapshot_table import SnapshotTable
from ..worker.main import Worker

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
            recipe_slots.TRIAL,
            control_channel.findings({"landlock": jail.files.abi}),
            control_channel.findings({}),
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
                self._slots[recipe_slots.group(index)] = descriptors[4 + index]
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
        """Fill the slots of descriptors, in the order of `jail.recipe.recipe_slots`."""
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

"""The birth of a session: what the zygote makes for it, and what its first process does with that.

That process forks the first worker at once, and is the session's init then. In tier `jailed` both
happens without a line of Python where that can be (`jail.quiet_init`).
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import os
from functools import partial
from typing import NamedTuple, NoReturn

from ..jail import forks, quiet_steps
from ..jail.quiet_init import Ends, QuietInit
from ..jail.quiet_steps import QuietSteps
from ..jail.recipe import BIRTH, DONE, RECIPES, Jail, contain
from ..worker.main import Worker
from ..worker.states import States
from .generation import WORKER_FD, be_worker, complain, kept_by_worker, limiter_of, report
from .init import Init
from .revival import Revival

_ignore_children = partial(_signal.signal, _signal.SIGCHLD, _signal.SIG_DFL)


class Birth(NamedTuple):
    """What the zygote has made for a session before it forks it."""

    jail: Jail
    descriptors: tuple[int, int, int, int]  # control, worker socket, stdout, stderr
    written: int  # the other end of `jail.mapped`
    done: int  # the other end of `jail.contained`
    states: States  # the page that init and worker share
    revival: Revival | None
    worker: Worker  # made before the fork, to serve in one of this process
    steps: QuietSteps | None  # of that worker, where they can do without Python

    def prepare(self, quiet: QuietInit | None) -> Birth:
        """In the zygote: have the session's processes begin without a line of Python.

        Returns: what the first process is to be told.
        """
        if quiet is None:
            return self._replace(steps=None)
        control_fd, _, stdout, stderr = self.descriptors
        self._keep()
        awaited = (control_fd,) if self.revival is None else (control_fd, self.revival.awaited)
        ends = Ends(stdout, stderr, self.written, self.done, awaited)
        steps, then = self._worker_steps()
        quiet.prepare(self.jail, ends, then)
        return self._replace(steps=steps)

    def close(self) -> None:
        """In the zygote: let go of what is the session's."""
        jail = self.jail
        for fd in (jail.contained, self.done, jail.mapped, self.written):
            if fd >= 0:
                os.close(fd)
        if self.revival is not None:
            self.revival.close()
        self.states.close()

    def leave(self) -> None:
        """As `close`, but the numbers of what is closed stay those of this."""
        jail = self.jail
        for fd in (jail.contained, self.done, jail.mapped, self.written):
            os.close(fd)
        if self.revival is not None:
            self.revival.orders.leave()
        self.states.renew()

    def again(self) -> bool:
        """After `leave`: have all of it anew; False, and `drop`, if a number is another's."""
        jail, revival = self.jail, self.revival
        opened = [*os.pipe2(os.O_CLOEXEC)]
        if opened == [jail.contained, self.done] and (revival is None or revival.orders.again()):
            opened += os.pipe2(os.O_CLOEXEC)
            if opened[2:] == [jail.mapped, self.written]:
                return True
            if revival is not None:
                revival.orders.leave()
        for fd in opened:
            os.close(fd)
        self.drop()
        return False

    def drop(self) -> None:
        """After `leave`: the numbers may be others' from now on."""
        if self.revival is not None:
            self.revival.orders.drop()
        self.states.close()

    def begin(self) -> None:
        """Be the first worker, if this process is, and got so far without a line of Python."""
        if self.steps is None or self.steps.untold.value:
            return
        _ignore_children()
        try:
            self.worker.serve_on()
            os._exit(0)
        # Boundary: as in `be_worker`.
        except Exception as error:  # noqa: BLE001
            complain(error)
        finally:
            os._exit(1)

    def _worker_steps(self) -> tuple[QuietSteps | None, int]:
        """What can take the first worker's steps, and where it begins."""
        jail, control, worker = self.jail, *self.descriptors[:2]
        kept = frozenset(kept_by_worker(jail, control, self.revival))
        steps, used = self.steps, (*(kept - {WORKER_FD}), worker, jail.mapped)
        if steps is None or not steps.has_room(*used):
            return None, 0
        ends = quiet_steps.Ends(control, worker, kept)
        if steps.is_whole:
            recovery = None if self.revival is None else self.revival.recovery()
            self.worker.belong_to(WORKER_FD, self.states, recovery)
        return steps, steps.prepare(jail, ends, waits=True)

    def be_session(self, quiet: QuietInit | None) -> NoReturn:
        """Be the first process of a new session: fork its first worker at once, then be its init.

        Nothing but `BIRTH` is done before that fork, because every page that this process writes
        first, the worker would have to copy again.
        """
        tier, control_fd = self.jail.tier, self.descriptors[0]
        try:
            worker = self._fork() if quiet is None else quiet.begin(tier)
            if worker == 0:
                self._be_worker()
            self.jail.contained = -1  # its number may be another descriptor's by the next worker
            template, states, revival = self.worker, self.states, self.revival
            Init(self.jail, control_fd, template, worker, states, revival).serve()
        # Boundary: this process has nowhere else to say what went wrong in it.
        except Exception as error:  # noqa: BLE001
            report(control_fd, tier, "init", error)
        finally:
            # Whatever happened, this process must not return into the zygote's code.
            os._exit(1)

    def _keep(self) -> None:
        jail = self.jail
        jail.kept = {0, 1, 2, self.descriptors[0], jail.mapped, self.done, *(self.revival or ())}
        jail.kept.update(limiter_of(jail))

    def _fork(self) -> int:
        """What a quiet init does, in Python: the worker's id, 0 in the worker."""
        jail = self.jail
        if self.written >= 0:
            # Else it would wait for ever, if the zygote were killed before it had written the maps.
            os.close(self.written)
        contain(jail, BIRTH)
        worker = forks.fork()
        for target, fd in enumerate(self.descriptors[2:], 1):
            os.dup2(fd, target)
        if worker:
            self._keep()
            contain(jail, RECIPES[jail.tier].init)
            os.write(self.done, DONE)
            os.close(self.done)
        return worker

    def _be_worker(self) -> NoReturn:
        if self.steps is None or not self.steps.is_whole:
            os.close(self.done)
        be_worker(
            self.jail,
            RECIPES[self.jail.tier].first_worker,
            *self.descriptors[:2],
            self.worker,
            self.states,
            self.revival,
            quiet=self.steps,
        )

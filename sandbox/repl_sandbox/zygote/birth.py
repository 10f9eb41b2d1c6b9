"""The birth of a session: what the zygote makes for it, and what its first process does with that.

That process forks the first worker at once, and is the session's init then. In tier `jailed` both
happens without a line of Python where that can be (`jail.quiet_init`).
"""

from __future__ import annotations

import os
from typing import NamedTuple, NoReturn

from ..jail import forks
from ..jail.quiet_init import Ends, QuietInit
from ..jail.quiet_steps import QuietSteps
from ..jail.recipe import BIRTH, DONE, RECIPES, Jail, contain
from ..worker.main import Worker
from ..worker.states import States
from .generation import be_worker, kept_by_worker, report
from .init import Init
from .revival import Revival
from .working_set import WorkingSets


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
    working_sets: WorkingSets | None

    def prepare(self, quiet: QuietInit | None) -> None:
        """In the zygote: have the session's processes begin without a line of Python."""
        control_fd, _, stdout, stderr = self.descriptors
        if quiet is not None:
            self._keep()
            awaited = (control_fd,) if self.revival is None else (control_fd, self.revival.awaited)
            runs = (0, 0) if self.working_sets is None else self.working_sets.worker.runs
            ends = Ends(stdout, stderr, self.written, self.done, awaited)
            quiet.prepare(self.jail, ends, runs)
        if self.steps is not None:
            self.steps.prepare(self.jail, kept_by_worker(self.jail, control_fd, self.revival))

    def be_session(self, quiet: QuietInit | None) -> NoReturn:
        """Be the first process of a new session: fork its first worker at once, then be its init.

        Nothing but `BIRTH` is done before that fork, because every page that this process writes
        first, the worker would have to copy again.
        """
        tier, control_fd = self.jail.tier, self.descriptors[0]
        try:
            worker = self._fork() if quiet is None else quiet.begin(tier)
            if worker == 0:
                if self.working_sets is not None and not (quiet and quiet.populates):
                    self.working_sets.worker.bring()
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

    def _fork(self) -> int:
        """What a quiet init does, in Python: the worker's id, 0 in the worker."""
        jail = self.jail
        if self.written >= 0:
            # Else it would wait for ever, if the zygote were killed before it had written the maps.
            os.close(self.written)
        contain(jail, BIRTH)
        worker = forks.fork()
        if worker and self.working_sets is not None:
            self.working_sets.init.bring()
        for target, fd in enumerate(self.descriptors[2:], 1):
            os.dup2(fd, target)
        if worker:
            self._keep()
            contain(jail, RECIPES[jail.tier].init)
            os.write(self.done, DONE)
            os.close(self.done)
        return worker

    def _be_worker(self) -> NoReturn:
        os.close(self.done)
        be_worker(
            self.jail,
            RECIPES[self.jail.tier].first_worker,
            *self.descriptors[:2],
            self.worker,
            self.states,
            self.revival,
            quiet=self.steps,
            has_pages=self.working_sets is not None,
        )

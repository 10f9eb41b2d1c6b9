"""How another line of a session begins: a fork of its worker, with links of its own."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator

from ..errors import SandboxError
from ..wire.messages import Fetch, Restored
from ..worker.branching import ASK_FOR_BRANCH
from ..zygote.links import Links
from .ends import EndsOfBranch
from .exchange import Ready_
from .questions import Questions
from .revival import RESTART_TIMEOUT, REVIVE_TIMEOUT

# Of a worker that ends just then, a copy takes over, and is asked in its turn.
_MOST_WORKERS = 2

_monotonic = time.monotonic


class Branching(Questions):
    """A session that can be copied while it lives."""

    def branch(
        self, seed: int | None, take_room: Callable[[], None]
    ) -> Generator[float, Ready_, Links]:
        """Have the worker fork another line of the session; what connects the host to it.

        `take_room` is called once, before there is one.
        """
        if not self.keeps:
            raise SandboxError("branch needs waiting copies: Sandbox(recovery='snapshot')")
        ends: EndsOfBranch | None = None

        def connect() -> None:
            nonlocal ends
            if ends is None:
                take_room()
            ends = EndsOfBranch()

        try:
            for _ in range(_MOST_WORKERS):
                # Before it answers anything, the worker has a copy made of what it is now; and one
                # that has answered this waits for the order.
                yield from self.ask(Fetch(ASK_FOR_BRANCH), meanwhile=connect)
                assert ends is not None
                if (yield from self._whole(self._order_branch(seed, ends))):
                    return ends.links(self.links)
                ends.close()
                if not self._dead:
                    break
        except BaseException:
            if ends is not None:
                ends.close()
            raise
        raise SandboxError(
            "the session could not be copied: there is no room for another process, too many of "
            "its descriptors would be lost (at most three quarters of Limits.open_files), or its "
            "processes ended the copy"
        )

    def _order_branch(self, seed: int | None, ends: EndsOfBranch) -> Generator[float, Ready_, bool]:
        """Whether init has the worker fork a branch. Heard out: meanwhile neither hears a cell."""
        self._branched, self._branches = None, self._branches + 1
        order = {"op": "branch", "seed": -1 if seed is None else seed, "number": self._branches}
        self._tell_init(order, tuple(ends.theirs))
        ends.close_theirs()
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._branched is None:
            self._receive((yield deadline))
            if self._init_is_gone or _monotonic() > deadline:
                raise SandboxError("the session's init does not answer; close the session")
            if self._dead:
                self._turn_from_worker()
        if not self._dead:
            self._receive([(self.worker_fd, select.POLLIN)])  # of one that has ended just then
        return self._branched

    def begin_line(self) -> Generator[float, Ready_, tuple[str, ...]]:
        """Wait until this branch speaks; what of the session it could not take along."""
        deadline = _monotonic() + RESTART_TIMEOUT
        while not isinstance(self._asked, Restored):
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                raise SandboxError("the branch did not come up")
        return self._asked.lost

"""How another line of a session begins: a fork of its waiting copy, with links of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from ..errors import SandboxError
from ..wire.messages import Fetch, Restored
from ..worker.copies import ASK_FOR_COPY
from ..zygote.links import Links
from .ends import EndsOfBranch
from .exchange import Ready_
from .questions import Questions
from .revival import RESTART_TIMEOUT, REVIVE_TIMEOUT

_monotonic = time.monotonic


class Branching(Questions):
    """A session that can be copied while it lives."""

    def branch(
        self, seed: int | None, take_room: Callable[[], None]
    ) -> Generator[float, Ready_, Links]:
        """Have a waiting copy fork another line of the session; what connects the host to it.

        `take_room` is called before there is one.
        """
        if not self.keeps:
            raise SandboxError("branch needs waiting copies: Sandbox(recovery='snapshot')")
        ends: EndsOfBranch | None = None

        def connect() -> None:
            nonlocal ends
            take_room()
            ends = EndsOfBranch()

        try:
            # Before it answers anything, the worker has a copy made of what it is now; but before
            # its first cell there need be none, until it is asked for one.
            if not self.last_kept:
                yield from self.ask(Fetch(ASK_FOR_COPY))
            yield from self.ask(Fetch(ASK_FOR_COPY), meanwhile=connect)
            assert ends is not None
            order = {"op": "branch", "cell": self.last_kept}
            order["seed"] = -1 if seed is None else seed
            self._branched, self._branches = None, self._branches + 1
            self._tell_init({**order, "number": self._branches}, tuple(ends.theirs))
            ends.close_theirs()
            if not (yield from self._hear_of_branch()):
                raise SandboxError(
                    "the session could not be copied: there is no room for another process, or its "
                    "processes ended the copy"
                )
        except BaseException:
            if ends is not None:
                ends.close()
            raise
        return ends.links(self.links)

    def _hear_of_branch(self) -> Generator[float, Ready_, bool]:
        """Whether init has made the branch; it is of a copy, and the worker may end meanwhile."""
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._branched is None:
            self._receive((yield deadline))
            if self._init_is_gone or _monotonic() > deadline:
                raise SandboxError("the session's init does not answer; close the session")
            if self._dead:
                self._turn_from_worker()
        return self._branched

    def begin_line(self) -> Generator[float, Ready_, tuple[str, ...]]:
        """Wait until this branch speaks; what of the session it could not take along."""
        deadline = _monotonic() + RESTART_TIMEOUT
        while not isinstance(self._asked, Restored):
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                raise SandboxError("the branch did not come up")
        return self._asked.lost

"""`Branches`: forks of a session's worker that become sessions with links of their own."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator

from ..errors import SandboxError
from ..protocol.messages import Fetch, Restored
from ..snapshots.branch_fork import ASK_FOR_BRANCH
from ..zygote.client.session_links import SessionLinks
from .branch_endpoints import BranchEndpoints
from .io import ReadyDescriptors, SessionIO
from .namespace_queries import NamespaceQueries
from .recovery import RESTART_TIMEOUT, REVIVE_TIMEOUT, Recovery
from .shielded_operations import ShieldedOperations

# If the worker ends at that moment, a snapshot takes over and gets the request again.
_MAX_WORKERS = 2

_monotonic = time.monotonic


class Branches:
    """The branches of one session."""

    def __init__(
        self,
        io: SessionIO,
        queries: NamespaceQueries,
        recovery: Recovery,
        completion: ShieldedOperations,
    ) -> None:
        self._io, self._worker = io, io.worker
        self._queries, self._recovery, self._completion = queries, recovery, completion

    def make(
        self, seed: int | None, reserve: Callable[[], None]
    ) -> Generator[float, ReadyDescriptors, SessionLinks]:
        """Have the worker fork a branch, and return the links to it.

        `reserve` is called once, before the branch exists.
        """
        if not self._recovery.has_snapshots:
            raise SandboxError(
                "branch needs snapshots: use Sandbox(recovery='snapshot') on a kernel that "
                "supports them"
            )
        ends: BranchEndpoints | None = None

        def connect() -> None:
            nonlocal ends
            if ends is None:
                reserve()
            ends = BranchEndpoints()

        try:
            for _ in range(_MAX_WORKERS):
                # Before a worker answers anything, it makes a snapshot of its state; a worker that
                # has answered this query waits for the order.
                yield from self._queries.ask(Fetch(ASK_FOR_BRANCH), meanwhile=connect)
                assert ends is not None
                if (yield from self._completion.of(self._fork(seed, ends))):
                    return ends.links(self._io.links)
                ends.close()
                if not self._worker.dead:
                    break
        except BaseException:
            if ends is not None:
                ends.close()
            raise
        raise SandboxError(
            "the session could not be branched: there is no room for another process, too many of "
            "its descriptors would be lost (at most three quarters of Limits.open_files), or its "
            "processes ended the branch"
        )

    def _fork(
        self, seed: int | None, ends: BranchEndpoints
    ) -> Generator[float, ReadyDescriptors, bool]:
        """Return whether init has the worker fork a branch. The order is completed: meanwhile
        neither process reads a cell.
        """
        self._io.init.request_branch(seed, tuple(ends.remote))
        ends.close_remote()
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._io.init.branched is None:
            self._io.receive((yield deadline))
            if self._worker.init_is_gone or _monotonic() > deadline:
                raise SandboxError("the session's init does not answer; close the session")
            if self._worker.dead:
                self._io.ignore_worker()
        if not self._worker.dead:
            # The notice is about a worker that has just ended.
            self._io.receive([(self._io.worker_fd, select.POLLIN)])
        return self._io.init.branched

    def begin(self) -> Generator[float, ReadyDescriptors, tuple[str, ...]]:
        """Wait until the worker of this session, a branch, answers; return what it lost in the
        fork.
        """
        deadline = _monotonic() + RESTART_TIMEOUT
        while not isinstance(self._io.answer, Restored):
            self._io.receive_new((yield deadline))
            if self._worker.dead or _monotonic() > deadline:
                raise SandboxError("the branch did not come up")
        return self._io.answer.lost

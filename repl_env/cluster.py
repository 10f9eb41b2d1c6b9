"""Servers as one: `REPLCluster`, and `ClusterVectorEnv`, whose rows are on many servers."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from repl_env.client.address import ServerAccess, Timeouts
from repl_env.client.client import REPLEnv
from repl_env.client.nodes import NodeStatus, Placement, finder
from repl_env.client.requests import checked_timeout
from repl_env.client.session import SessionClient
from repl_env.common.display import DisplayedByRepr, set_module
from repl_env.common.threads import CLIENTS
from repl_env.common.values import above_zero, at_least
from repl_env.env.outcomes import EpisodeGroup, Requests, Result, VectorOutcomes, resets_of
from repl_env.episode.call_options import RESET_NAMES
from repl_env.errors import EpisodeAborted, ReplyTimeout, ServerUnavailable, SessionLost
from repl_env.models import REPLAction, REPLObservation

__all__ = ["ClusterVectorEnv", "NodeStatus", "REPLCluster"]

# The address of a client without a session.
_NO_NODE: Final = "http://no-node.invalid"


@set_module("repl_env.cluster")
class REPLCluster(DisplayedByRepr):
    """Servers as one: each session is opened on a node with room.

    ```python
    from repl_env.cluster import REPLCluster

    cluster = REPLCluster(["http://127.0.0.1:8000"])  # one address for each node
    with cluster.env().sync() as env:
        env.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        print(env.execute("FINAL(len(context.split()))").reward)  # 1.0
    ```
    A session stays on its node. If the node dies, drains or is cut off, calls raise SessionLost,
    which is an infrastructure error, and the next reset begins a session on another node. Nothing
    runs twice.

    A node is chosen by its free sessions: two nodes at random, and of these the one with more room.
    A context of at least 1 MiB leads to the node that has it already, unless that node has more
    than 1.25 times its share of the sessions. Nodes of another version (the first two numbers)
    get no sessions; `status` names them.

    Args:
        nodes: URLs of servers; or a directory that nodes join (`repl-env serve --join DIR`); or
            `dns://name:port`, a name with one address for each node, over HTTP. The last two are
            read again every second, so nodes can come and go.
        api_key: for all nodes, as of `REPLEnv`; likewise `headers` and `tls`.
        connect_timeout_s: seconds in which a node answers, or counts as away.
        message_timeout_s: as of `REPLEnv`; likewise `max_message_size_mb` and `ping_s`.
        reconnect_s: seconds for which a lost connection is opened again before the session counts
            as lost; at most those that the server keeps a session.
        queue_timeout_s: seconds that a reset waits for a node with room.
        max_waiting: resets that may wait at once.

    Raises:
        TypeError, ValueError: naming the argument. Nothing is connected yet.
        OSError: there is no such directory, or every user can write to it.
    """

    def __init__(
        self,
        nodes: str | os.PathLike[str] | Sequence[str],
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 3.0,
        message_timeout_s: float | None = None,
        max_message_size_mb: float = 100.0,
        ping_s: float | None = 5.0,
        reconnect_s: float = 10.0,
        queue_timeout_s: float = 60.0,
        max_waiting: int = 1024,
    ) -> None:
        self._timeouts = Timeouts.of(
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            ping_s=ping_s,
            reconnect_s=reconnect_s,
        )
        self._placement = Placement(
            finder(nodes),
            ServerAccess.of(_NO_NODE, api_key, headers, tls),
            probe_s=self._timeouts.connect_s,
            queue_s=above_zero(queue_timeout_s, "queue_timeout_s"),
            max_waiting=at_least(max_waiting, 1, "max_waiting"),
        )

    def __repr__(self) -> str:
        return f"<REPLCluster, {self._placement.known} nodes known>"

    def env(self) -> REPLEnv:
        """Return a client whose sessions are opened on nodes of this cluster.

        The node is chosen when a session is opened, by the first reset; `base_url` names it from
        then on. In blocking code: `with cluster.env().sync() as env:`.
        """
        access = self._placement.access
        return REPLEnv._of(SessionClient(access, self._timeouts, self._placement))

    def vector(self, n: int) -> ClusterVectorEnv:
        """Return n environments that are reset and stepped together, on nodes of this cluster.

        `with cluster.vector(64) as envs:` is used as a `REPLVectorEnv`; its arguments are those of
        `REPLEnv.reset`.
        """
        return ClusterVectorEnv([self.env() for _ in range(at_least(n, 1, "n"))])

    def status(self) -> list[NodeStatus]:
        """Ask all nodes, and return what they report; blocking.

        A node that takes no sessions has a `problem`.
        """
        return self._placement.statuses()


# Errors of a step that end the row's episode: the node is gone, or out of reach.
_INFRASTRUCTURE: Final = (SessionLost, ServerUnavailable, ReplyTimeout)


@set_module("repl_env.cluster")
class ClusterVectorEnv(DisplayedByRepr, EpisodeGroup):
    """n environments on the nodes of a cluster, with the methods of `REPLVectorEnv`.

    Results are in the order of the actions. A row whose node died or was cut off is done: its
    result says so (`error_kind` "sandbox", `mask`), the others go on, and the row's next reset
    begins a session on another node. A finished row that gets another action returns its last
    result again, with reward 0.0.

    Attributes:
        environments: the n clients.
    """

    def __init__(self, environments: Sequence[REPLEnv]) -> None:
        self.environments = tuple(environments)
        self._outcomes = VectorOutcomes(len(self.environments))
        CLIENTS.end_at_exit()

    def __len__(self) -> int:
        return len(self.environments)

    def __repr__(self) -> str:
        return f"<ClusterVectorEnv of {len(self)}>"

    def reset(
        self,
        requests: Requests | None = None,
        *,
        only: Iterable[int] | None = None,
        **shared: Any,
    ) -> list[Result | None]:
        """Begin an episode in every row, or in those of `only`; as `REPLVectorEnv.reset`.

        The arguments are those of `REPLEnv.reset`.
        """
        return CLIENTS.wait_for(self.areset(requests, only=only, **shared))

    def step(
        self,
        actions: Sequence[str | REPLAction | None],
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
    ) -> list[Result | None]:
        """Take one action in each row concurrently; None is no action, and no result."""
        return CLIENTS.wait_for(self.astep(actions, timeout_s=timeout_s, timeout=timeout))

    async def areset(
        self,
        requests: Requests | None = None,
        *,
        only: Iterable[int] | None = None,
        **shared: Any,
    ) -> list[Result | None]:
        """`reset` for an event loop; use one loop alone."""
        resets = resets_of(len(self), requests, only, shared, RESET_NAMES)
        self._outcomes.begin_resets(resets)
        ends = await _outcomes_of(
            self.environments[number].reset(**arguments) for number, arguments in resets.items()
        )
        return self._outcomes.record_resets(resets, ends)

    async def astep(
        self,
        actions: Sequence[str | REPLAction | None],
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
    ) -> list[Result | None]:
        """`step` for an event loop."""
        timeout_s = checked_timeout(timeout_s, timeout)
        by_number = self._outcomes.actions_by_number(actions)
        self._outcomes.clear()
        ends = await _outcomes_of(
            self.environments[number].step(action, timeout_s=timeout_s)
            for number, action in by_number.items()
        )
        return self._outcomes.record_steps(by_number, ends)

    def close(self) -> None:
        """End all sessions."""
        CLIENTS.wait_for(self.aclose())

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await asyncio.gather(*(env.close() for env in self.environments))
        self._outcomes = VectorOutcomes(len(self), closed=True)


async def _outcomes_of(
    calls: Iterable[Coroutine[Any, Any, Result]],
) -> list[REPLObservation | BaseException]:
    """Run the calls together; return the observation of each, or its error."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    return [_outcome(end) for end in ends]


def _outcome(end: Result | BaseException) -> REPLObservation | BaseException:
    if isinstance(end, _INFRASTRUCTURE):
        return EpisodeAborted("sandbox", str(end))
    return end if isinstance(end, BaseException) else end.observation

"""Goals of the figures: a table, with the source of each number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .figure import Figure
from .samples import Samples


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure's ratio to its floor, on what it adds to it, or on its own value."""

    of: Literal["ratio", "difference", "value"]
    kind: Literal["at most", "at least"]
    bound: float
    why: str

    def met(self, figure: Figure) -> bool:
        """Whether the median keeps the bound."""
        measured = _MEASURED[self.of](figure).median
        return measured <= self.bound if self.kind == "at most" else measured >= self.bound


_MEASURED: dict[str, Callable[[Figure], Samples]] = {
    "ratio": lambda figure: figure.ratio,
    "difference": lambda figure: figure.difference,
    "value": lambda figure: figure.ours,
}

GOALS: dict[str, Goal] = {
    "cold": Goal("ratio", "at most", 3.2, "seven namespaces, mounts and a filter; 1.5 is the aim"),
    "step": Goal("ratio", "at most", 3.5, "capture, changes and clocks on top of the round trip"),
    "step_env": Goal("ratio", "at most", 8.0, "the engine's step, an observation and its rewards"),
    "syscall": Goal(
        "difference", "at most", 25e-9, "the filter is asked, the namespaces looked up"
    ),
    "stdout": Goal("ratio", "at most", 3.0, "through a pipe instead of a buffer, and back as text"),
    "context_100": Goal("ratio", "at most", 2.0, "encoding the text is the only copy more"),
    "cpu": Goal("ratio", "at most", 1.1, "native code; the tenth is the noise of the machine"),
    "rate": Goal("ratio", "at least", 0.3, "all namespaces are made and torn down each time"),
    "recovery": Goal("value", "at most", 0.01, "processes ended, a copy woken, files put back"),
    "recovery_1gb": Goal("value", "at most", 0.06, "the kernel frees what the dead one had"),
    "step_paused": Goal(
        "ratio", "at most", 3.0, "the first write to a page after a fork copies it"
    ),
    "step_paused_more": Goal("difference", "at most", 150e-6, "some 40 such pages"),
    "step_copied": Goal("ratio", "at most", 1.1, "the copy is a fork, and its end another's work"),
    "shared_memory": Goal("value", "at most", 292e6, "the context once, and 3 MB for each session"),
    "shared_answer": Goal(
        "value", "at most", 5e-3, "the next one is made ahead of time; its pages are there"
    ),
    "vector": Goal("ratio", "at least", 1.5, "sessions on all cores beside the host's own work"),
    "memory": Goal("value", "at most", 3.5e6, "init and worker share their template's pages"),
    "subcalls": Goal("value", "at most", 0.25, "what the endpoint takes, and 3 ms for each call"),
    "download": Goal("ratio", "at most", 2.0, "the same bytes, from a descriptor of the workspace"),
    "branch": Goal("value", "at most", 5e-3, "two forks of 100 MB of page tables, one before it"),
    "turn": Goal("value", "at most", 2e-3, "nothing beside a model that takes seconds"),
    "turn_late": Goal("ratio", "at most", 3.0, "however many turns were before"),
    "subcall": Goal("ratio", "at most", 3.0, "an account, a gate and events on top of a host call"),
    "trees": Goal("ratio", "at least", 0.25, "a turn and its bookkeeping for each session"),
    "chat_rollout": Goal("ratio", "at most", 0.5, "TorchRL's interpreter starts a Python per row"),
    "chat_group_memory_kept": Goal(
        "value", "at most", 60e6, "the context once, and 5 MB for each session and its copy"
    ),
    "container_session": Goal("ratio", "at most", 1.3, "a fork in the container, as outside"),
    "container_step": Goal(
        "ratio", "at most", 1.2, "the same sockets; the daemon has no part in it"
    ),
    "branches": Goal("value", "at most", 292e6, "the 100 MB once, and 3 MB for each branch"),
    "server_rate_to_peer": Goal("ratio", "at least", 3.0, "its steps run in the server's process"),
    "server_rate_pausing": Goal(
        "ratio", "at least", 0.9, "the copy is made while the client pauses"
    ),
    "server_p99_32": Goal("value", "at most", 25e-3, "32 steps in line at the rate above, twice"),
    # Openings with a step, which have no goal, show the cost of making and ending a session.
    "server_openings_1": Goal(
        "value", "at least", 180, "a socket; its session, as it was made, serves the next one"
    ),
    "server_openings_8": Goal("value", "at least", 180, "likewise"),
    "server_context": Goal("value", "at most", 1.5, "one copy on its way in, one template"),
    "server_memory": Goal("value", "at most", 6e9, "a session of 3.5 MB, its copy, its socket"),
}

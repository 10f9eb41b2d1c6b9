"""A soak of the server: guests that die at any point, abusers, and clients that are measured."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.repl_env.llm.endpoint import Endpoint, Reply

from .abusers import Abuser
from .server_ends import drains, kill, left
from .server_process import Served
from .simulated_clients import GRACE, Guest, forget_uploads

# Times are shorter than a server's own: a soak waits for them to pass.
OPTIONS = (
    *("--grace", str(GRACE), "--timeout", "60"),
    *("--max-sessions", "512", "--memory", "256MiB"),
)
# Seconds that the model takes for an answer.
_THINKING = 0.02
_PROBES = 4
_MOST_COMPLAINTS = 5  # of one server's log that are shown
# Parts of the time: without abusers, and with them. The rest is for warming up.
_CALM, _ABUSED = 0.3, 0.6
# Bytes that an idle server may have grown by: an allocator cannot give back free memory on pages
# that are in use, and each new peak of concurrent requests leaves some MiB more of such memory.
_GROWTH = 24 << 20
# The allowed increase of the slowest percentile of steps beside abuse: a factor, and milliseconds
# where the base is small. The cores are shared with 20 busy processes.
_HARM, _HARM_MS = 5.0, 100.0


@dataclass(slots=True)
class Report:
    """Result of a soak: figures and faults."""

    done: Counter[str] = field(default_factory=Counter)
    abused: Counter[str] = field(default_factory=Counter)
    calm: dict[str, float] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)
    grown: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def harm(self) -> str | None:
        """The harm that the abusers did to the other clients, or None if it is acceptable."""
        calm, beside = self.calm["p99 ms"], self.beside["p99 ms"]
        if beside <= max(calm * _HARM, calm + _HARM_MS):
            return None
        return f"p99 of the measured went from {calm} to {beside} ms"

    def told(self) -> dict[str, Any]:
        """All figures, formatted."""
        return {
            "done by guests": self.done.total(),
            "done by abusers": self.abused.total(),
            "steps measured without abusers": self.calm,
            "beside them": self.beside,
            "server grew MiB": round(self.grown / 2**20, 2),
            "by act": dict(self.done.most_common()),
            "by abuse": dict(self.abused.most_common()),
            "faults": self.faults,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients of a server and the time they stay, extended until guests did all `wanted` things."""

    seconds: float
    guests: int
    abusers: int
    seed: str
    wanted: Collection[str] = ()

    def warm_up(self) -> Load:
        """A little of all, after which what is held may not grow any more."""
        return self._part(1.0 + self.seconds * 0.1, "warm-up")

    def calm(self) -> Load:
        """The figures without abuse."""
        return replace(self._part(self.seconds * _CALM, "calm"), abusers=0)

    def abused(self) -> Load:
        """The part with them."""
        return replace(self._part(self.seconds * _ABUSED, "abused"), wanted=self.wanted)

    def _part(self, seconds: float, name: str) -> Load:
        return replace(self, seconds=seconds, seed=f"{self.seed}-{name}", wanted=())


def soak(load: Load) -> Report:
    """Soak a server of its own, then kill it, start it again at once and have it drain."""
    report = Report()
    with (
        Endpoint(lambda asked: Reply(asked.prompt.upper(), delay=_THINKING)) as model,
        Served((*OPTIONS, "--model", "a model", "--base-url", model.base_url)) as served,
    ):
        asyncio.run(_bear(served, load.warm_up(), report))
        report.faults += _unsettled(served)
        before, memory = served.holdings(), served.memory()
        report.calm = asyncio.run(_measured(served, load.calm(), report))
        report.beside = asyncio.run(_measured(served, load.abused(), report))
        report.faults += _unsettled(served, before.processes)
        report.faults += served.left_behind(before)
        report.grown = served.memory() - memory
        if report.grown > _GROWTH:
            report.faults.append(f"memory grew by {report.grown} bytes")
        processes = kill(served)
        report.faults += served.complaints()[:_MOST_COMPLAINTS]
        with served.again() as again:
            report.faults += [*left(processes), *drains(again)]
            report.faults += again.complaints()[:_MOST_COMPLAINTS]
    return report


def _unsettled(served: Served, processes: int | None = None) -> list[str]:
    """Return a fault if the server does not settle after all clients have disconnected."""
    forget_uploads(served)
    try:
        served.settled(processes)
    except TimeoutError as error:
        return [str(error)]
    return []


async def _measured(served: Served, load: Load, report: Report) -> dict[str, float]:
    """Return the figures of clients that step on a clock during the load."""
    probe = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soak.server.probe"),
        *(served.url, str(_PROBES), str(load.seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    await _bear(served, load, report)
    told, _ = await probe.communicate()
    if probe.returncode:
        report.faults.append("the measured clients did not get what they asked for")
        return {"p99 ms": 0.0}
    return dict(json.loads(told))


async def _bear(served: Served, load: Load, report: Report) -> None:
    """Guests and abusers for so long; whatever befalls one of them is in the report."""
    end = time.monotonic() + load.seconds
    guests = [Guest(served, f"{load.seed}-{n}", report.done) for n in range(load.guests)]
    abusers = [Abuser(served, n, f"{load.seed}-{n}", report.abused) for n in range(load.abusers)]
    lives = [
        *(partial(guest.live, wanted=load.wanted) for guest in guests),
        *(abuser.live for abuser in abusers),
    ]
    await asyncio.gather(*(_until(live, end, report) for live in lives))


async def _until(live: Callable[[float], Awaitable[None]], end: float, report: Report) -> None:
    try:
        await live(end)
    # Boundary: the report is to have every fault.
    except Exception as error:  # noqa: BLE001
        report.faults.append(f"{type(error).__name__}: {error}")

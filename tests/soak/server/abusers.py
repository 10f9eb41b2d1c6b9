"""Abusers: clients whose code does the worst it can, held by the limits of its session."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from websockets.exceptions import ConnectionClosed

from repl_env.client.protocol import DOES_NOT_READ

from .forged_messages import FORGED
from .raw_socket import Refused, Wire
from .server_process import Served
from .simulated_clients import Unlike

_CORPUS = Path(__file__).parents[2] / "security" / "corpus" / "abuse.jsonl"
# Cases of the corpus, the loudest: bombs, floods, loops, and ends of the worker.
_CASES = (
    "proc-fork-bomb",
    "proc-thread-bomb",
    "proc-zombie-bomb",
    "res-cpu-loop",
    "res-cpu-loop-swallow",
    "res-c-regex",
    "res-c-pow",
    "res-gc-disable-leak",
    "res-mem-list",
    "res-mem-children",
    "res-repr-bomb",
    "res-stdout-flood",
    "res-disk-fill",
    "res-fd-exhaust",
    "res-deep-recursion",
    "res-sleep-forever",
    "rt-close-all-fds",
    "rt-forge-frames",
    "rt-kill-self",
    "rt-segfault",
)
_ENDLESS = 10**6  # steps of an episode, more than are ever made
# Error codes of a case that ends its own session; the session then restarts.
_LOST = ("EPISODE_ABORTED", "EXECUTION_ERROR", "NOT_RESET", "EPISODE_DONE")
_TIMEOUT = 2.0  # seconds for each case
# Seconds for a reply past the time of a case: interrupts, kills and forks of a busy machine.
_PATIENCE = 180.0


def cases() -> Iterator[tuple[str, str]]:
    """Name and code of each."""
    yield from FORGED.items()
    for line in _CORPUS.read_text().splitlines():
        case = json.loads(line)
        if case["id"] in _CASES:
            yield case["id"], case["code"]


class Abuser:
    """A session that is asked for one case after another, beginning with the first of `order`."""

    def __init__(self, served: Served, number: int, seed: str, done: Counter[str]) -> None:
        self._served = served
        self._cases = list(cases())
        self._number = number
        self._random = random.Random(seed)
        self._done = done

    async def live(self, end: float) -> None:
        """Abuse until the time is up, and once at least.

        A case gets a reply, even if it ends its session.
        """
        await self._renew()
        number = self._number
        try:
            while True:
                name, code = self._cases[number % len(self._cases)]
                async with asyncio.timeout(_TIMEOUT + _PATIENCE):
                    await self._abuse(name, code)
                self._done[name] += 1
                number = self._random.randrange(len(self._cases))
                if time.monotonic() >= end:
                    break
        finally:
            self._wire.cut()

    async def _abuse(self, name: str, code: str) -> None:
        wire, streamed = self._wire, self._random.random() < 0.5
        try:
            await wire.run(code, timeout_s=_TIMEOUT, stream=streamed)
            await wire.run("1 + 1", timeout_s=_TIMEOUT)
        except Refused as refused:
            if refused.code not in _LOST:
                raise Unlike(f"{name} came to {refused}") from refused
            await wire.ask("reset", {"max_iterations": _ENDLESS})
        except ConnectionClosed as closed:
            if closed.rcvd is None or closed.rcvd.code != DOES_NOT_READ:
                raise Unlike(f"{name} ended its socket: {closed}") from closed
            await self._renew()

    async def _renew(self) -> None:
        self._wire = await Wire.open(self._served.url)
        await self._wire.ask("reset", {"max_iterations": _ENDLESS})

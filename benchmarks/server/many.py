"""A thousand sessions open on one server process, each of which answers."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack

import psutil

from .. import bare_fork
from ..figure import Figure
from ..many import descendants, pss
from ..samples import Samples
from .generator import RESET, STEPPING, Connection, run, socket
from .served import Server

SESSIONS = 1000
_AT_ONCE = 16  # that are being opened; the server is to have this many and no more on its hands


def memory(server: Server) -> list[Figure]:
    """Memory of all sessions and the server: of the server's processes, and of the machine.

    The second also has what the kernel holds for them: page tables, sockets, namespaces. It has
    whatever else happens on the machine as well. Needs root, as `benchmarks.many.memory` does.
    """
    if os.geteuid() != 0:
        print("memory of sessions is not measured: it needs root", file=sys.stderr)
        return []
    before = psutil.virtual_memory().available
    held, left = run(_held(server))
    floor = _bare()
    name = f"{SESSIONS} sessions open, with recovery"
    return [
        Figure(
            "server_memory",
            f"memory (PSS) of the server and {name}",
            "MB",
            Samples((held,)),
            Samples((floor,)),
            f"{SESSIONS} bare-fork children",
        ),
        Figure(
            "server_memory_machine",
            f"memory that the machine lacks, {name}",
            "MB",
            Samples((float(before - left),)),
            Samples((held,)),
            "PSS of the same",
        ),
    ]


async def _held(server: Server) -> tuple[float, int]:
    """PSS of all and the memory left, with all sessions open and each asked once more."""
    gate = asyncio.Semaphore(_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def opened() -> Connection:
            async with gate:
                connection = await stack.enter_async_context(socket(server.url))
                await connection.ask(RESET)
                await connection.ask(STEPPING)
                return connection

        connections = await asyncio.gather(*(opened() for _ in range(SESSIONS)))
        await asyncio.gather(*(each.ask(STEPPING) for each in connections))
        held = pss(lambda: descendants(server.pid) | {server.pid})
        return held, psutil.virtual_memory().available


def _bare() -> float:
    with bare_fork.Parent() as parent:
        children = [parent.session() for _ in range(SESSIONS)]
        for child in children:
            child.run("1+1")
        held = pss(lambda: descendants(parent.pid))
        for child in children:
            child.close()
    return held

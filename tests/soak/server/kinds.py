"""Abuse of one kind at a time, from a process of its own that takes what the cores have left.

    python -m tests.soak.server.kinds URL KIND CLIENTS

Says "begun" when all clients have a session, and goes on until it is ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from websockets.exceptions import ConnectionClosed

from .forged_messages import FORGED
from .raw_socket import Refused, Wire

_ENDLESS = 10**9  # steps of an episode
_TIMEOUT = 2.0  # seconds of a cell
_AT_ONCE = 64  # requests that a flood sends before it reads

# Code that a session is asked to run again and again, by kind of abuse.
CODE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "endless loop": "while True: pass",
        "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
        "fork bomb that leaves its session": (
            "import os\nwhile True:\n    try:\n        if not os.fork(): os.setsid()\n"
            "    except OSError: pass\n"
        ),
        "memory bomb": "x = []\nwhile True: x.append(bytearray(b'z' * (8 << 20)))",
        "output flood": "while True: print('x' * 1000)",
        **FORGED,
    }
)
FLOOD: Final = "request flood"
KINDS: Final = (*CODE, FLOOD)


async def _abuse(url: str, begun: asyncio.Barrier, act: Callable[[Wire], Awaitable[None]]) -> None:
    wire = await Wire.open(url)
    await wire.ask("reset", {"max_iterations": _ENDLESS})
    await begun.wait()
    while True:
        try:
            await act(wire)
        except Refused:
            await wire.ask("reset", {"max_iterations": _ENDLESS})
        except ConnectionClosed:
            wire = await Wire.open(url)
            await wire.ask("reset", {"max_iterations": _ENDLESS})


async def _flood(wire: Wire) -> None:
    ids = [await wire.send("step", {"code": "x = 1"}) for _ in range(_AT_ONCE)]
    for each in ids:
        await wire.reply(each)


async def abuse(url: str, kind: str, clients: int) -> None:
    """Abuse until the process ends."""
    begun = asyncio.Barrier(clients + 1)

    async def cell(wire: Wire) -> None:
        await wire.run(CODE[kind], timeout_s=_TIMEOUT, stream=True)

    act = _flood if kind == FLOOD else cell
    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(_abuse(url, begun, act))
        await begun.wait()
        print("begun", flush=True)


def give_way() -> None:
    """Take only what others leave: abusers are elsewhere, and have processors of their own."""
    os.nice(19)
    try:
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("19")
    except OSError:
        pass  # then the nice value counts


if __name__ == "__main__":
    give_way()
    asyncio.run(abuse(sys.argv[1], sys.argv[2], int(sys.argv[3])))

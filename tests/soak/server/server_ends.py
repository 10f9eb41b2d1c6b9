"""The ends of a server: at once by SIGKILL, drained by SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal

import psutil
from websockets.exceptions import ConnectionClosed

from .raw_socket import Wire
from .server_process import Served, gone

_LONG = "import time\nprint('begun', flush=True)\ntime.sleep(1)\n'done'"
_ENDLESS = "print('begun', flush=True)\nwhile True: pass"
_SESSIONS = 8


def kill(served: Served) -> list[psutil.Process]:
    """SIGKILL to a server with sessions, one of them during a step; returns its descendants."""
    return asyncio.run(_kill(served))


async def _kill(served: Served) -> list[psutil.Process]:
    wires = [await Wire.open(served.url) for _ in range(_SESSIONS)]
    for wire in wires:
        await wire.ask("reset")
    await _begun(wires[0], _ENDLESS)
    processes = served.processes()
    served.kill()
    served.ended()
    for wire in wires:
        await wire.connection.wait_closed()
    return processes


def drains(served: Served) -> list[str]:
    """SIGTERM: the step that runs is answered, and nothing is left; what was otherwise."""
    value, processes = asyncio.run(_drained(served))
    faults = [] if value == "'done'" else [f"the step that ran when SIGTERM came gave {value}"]
    # Uvicorn ends as the signal would have ended it, once all is done.
    if (status := served.ended()) not in (0, -signal.SIGTERM):
        faults.append(f"SIGTERM ended the server with status {status}")
    return faults + left(processes)


async def _drained(served: Served) -> tuple[str | None, list[psutil.Process]]:
    wire, idle = await Wire.open(served.url), await Wire.open(served.url)
    await idle.ask("reset")
    await wire.ask("reset")
    step = await _begun(wire, _LONG)
    processes = served.processes()
    served.stop()
    try:
        result = (await wire.reply(step))["observation"]["result"]
    except ConnectionClosed as closed:
        return str(closed), processes
    finally:
        await asyncio.gather(idle.connection.wait_closed(), wire.connection.wait_closed())
    return result["value"], processes


async def _begun(wire: Wire, code: str) -> str:
    """The id of a step that runs: it has printed something."""
    step = await wire.send("step", {"code": code}, stream=True)
    while json.loads(await wire.connection.recv())["type"] != "output":
        pass
    return step


def left(processes: list[psutil.Process]) -> list[str]:
    """The processes that have not ended with their server, as text."""
    return [f"it left a process: {process}" for process in gone(processes)]

"""How a server ends: drained by SIGTERM, at once by SIGKILL, and begins again on its port."""

from __future__ import annotations

import asyncio
import json
import signal

import psutil
from websockets.exceptions import ConnectionClosed

from .served import Served, gone
from .wire import Wire

_LONG = "import time\nprint('begun', flush=True)\ntime.sleep(1)\n'done'"
_ENDLESS = "print('begun', flush=True)\nwhile True: pass"
_SESSIONS = 8


def drains(served: Served) -> list[str]:
    """SIGTERM: the step that runs is answered, and nothing is left; what was otherwise."""
    processes = served.processes()
    value, more = asyncio.run(_drained(served))
    faults = [] if value == "'done'" else [f"the step that ran when SIGTERM came gave {value}"]
    # Uvicorn ends as the signal would have ended it, once all is done.
    if (status := served.ended()) not in (0, -signal.SIGTERM):
        faults.append(f"SIGTERM ended the server with status {status}")
    return faults + _left([*processes, *more])


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


def dies(served: Served) -> list[str]:
    """SIGKILL: nothing jailed is left, and another works on the same port at once."""
    processes = asyncio.run(_killed(served))
    with served.again() as again:
        faults = _left(processes)
        value = asyncio.run(_answers(again))
        if value != "2":
            faults.append(f"1 + 1 is {value} on a server that was started again")
        again.stop()
        again.ended()
    return faults


async def _killed(served: Served) -> list[psutil.Process]:
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


async def _begun(wire: Wire, code: str) -> str:
    """The id of a step that runs: it has printed something."""
    step = await wire.send("step", {"code": code}, stream=True)
    while json.loads(await wire.connection.recv())["type"] != "output":
        pass
    return step


async def _answers(served: Served) -> str | None:
    wire = await Wire.open(served.url)
    await wire.ask("reset")
    value: str | None = (await wire.run("1 + 1"))["value"]
    await wire.close()
    return value


def _left(processes: list[psutil.Process]) -> list[str]:
    return [f"it left a process: {process}" for process in gone(processes)]

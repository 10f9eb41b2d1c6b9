"""Steps per second, how long each takes and what it costs, by how many clients there are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

from repl_env import AsyncLocalREPLEnv
from repl_sandbox import AsyncSandbox

from ..figure import Figure
from ..samples import Samples
from ..shown import Others
from ..work import STEP
from .generator import clients as clients_of
from .generator import run
from .load import Load, Step, load
from .processor_time import ProcessorTime
from .served import Server
from .turns import MANY, PAUSE, ROUNDS, ROUNDS_OF_THE_SAME, SECONDS, SECONDS_OF_MANY, rounds

CLIENTS = (1, 8, 32, MANY)
_IN_PROCESS = 8  # clients that are compared with as many environments
_FLOOR_IS = "a server of such frames, no session"
_ENDLESS = 10**9
_OURS = (("", "restart", "no recovery"), ("_recovery", "snapshot", "with recovery"))
_FIRST = "{}, first round"  # of servers that were just started, which is told apart

Loads = Mapping[tuple[str, int], list[Load]]
# Starts servers, which end with the context: "restart" and "snapshot", which are ours, "floor", and
# the peers by their names.
Start: TypeAlias = Callable[[], AbstractContextManager[Mapping[str, Server]]]


def stepping(start: Start, time: ProcessorTime) -> tuple[list[Figure], Others]:
    """Every figure of steps, and those of the peers among the servers."""
    loads: dict[tuple[str, int], list[Load]] = defaultdict(list)
    peers: list[str] = []
    for _ in range(ROUNDS // ROUNDS_OF_THE_SAME):
        with start() as servers:
            for key, found in run(_taken(servers, time)).items():
                loads[key] += found
            peers = [name for name in servers if name not in ("restart", "snapshot", "floor")]
    beside = _beside(loads, "OpenEnv repl" if "OpenEnv repl" in peers else None)
    figures = [*_ours(loads, time), _first(loads), *beside]
    return figures, {name: _of_peer(loads, name) for name in peers}


async def _taken(servers: Mapping[str, Server], time: ProcessorTime) -> Loads:
    """All loads in turn. Of a server's clients, who stay connected, the first so many make one."""
    loads: dict[tuple[str, int], list[Load]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        who = {
            name: await stack.enter_async_context(clients_of(server.url, max(CLIENTS)))
            for name, server in servers.items()
        }
        who["in process"] = await stack.enter_async_context(_in_process())
        for number, order in enumerate(rounds([*who], 1 + ROUNDS_OF_THE_SAME)):
            for clients in CLIENTS:
                seconds = SECONDS_OF_MANY if clients == MANY else SECONDS
                for name in order:
                    if name == "in process" and clients != _IN_PROCESS:
                        continue
                    await asyncio.sleep(PAUSE)
                    key = name if number else _FIRST.format(name)
                    loads[key, clients].append(await load(who[name][:clients], seconds, time))
    return loads


@asynccontextmanager
async def _in_process() -> AsyncIterator[list[Step]]:
    """Environments stepped on the generator's event loop, with nothing between."""
    async with AsyncSandbox(recovery="restart") as sandbox, AsyncExitStack() as stack:
        envs = [AsyncLocalREPLEnv(sandbox=sandbox) for _ in range(_IN_PROCESS)]
        for env in envs:
            stack.push_async_callback(env.close)
            await env.reset(max_iterations=_ENDLESS)
            await env.execute(STEP)
        yield [partial(env.execute, STEP) for env in envs]


def _ours(loads: Loads, time: ProcessorTime) -> Iterator[Figure]:
    for key, who, with_ in _OURS:
        for clients in CLIENTS:
            told = f"{clients} client{'s'[: clients > 1]}, {with_}"
            for name, words, unit, value in _values(time):
                yield Figure(
                    f"server_{name}{key}_{clients}",
                    f"{words}, {told}",
                    unit,
                    _samples(loads[who, clients], value),
                    _samples(loads["floor", clients], value),
                    _FLOOR_IS,
                )


def _first(loads: Loads) -> Figure:
    """Of sessions that have run a few cells, whose first copies are forks."""
    ours, floor = _FIRST.format("snapshot"), _FIRST.format("floor")
    return Figure(
        "server_rate_recovery_first",
        "steps per second, 8 clients, with recovery, in the round that is not counted",
        "/s",
        _samples(loads[ours, 8], _rate),
        _samples(loads[floor, 8], _rate),
        _FLOOR_IS,
    )


def _beside(loads: Loads, peer: str | None) -> Iterator[Figure]:
    """Comparisons for the goals: with the peer, and with the same steps without a server."""
    for key, who, with_ in _OURS:
        if peer is not None:
            yield Figure(
                f"server_rate{key}_to_peer",
                f"steps per second, 8 clients, {with_}, to OpenEnv's with smolagents' interpreter",
                "/s",
                _samples(loads[who, 8], _rate),
                _samples(loads[peer, 8], _rate),
                peer,
            )
    ours, engine = loads["restart", _IN_PROCESS], loads["in process", _IN_PROCESS]
    alone = f"{_IN_PROCESS} in one event loop, no server"
    for key, words, unit, value in (
        ("rate", "steps per second", "/s", _rate),
        ("cpu", "CPU of a step", "us", _cpu),
    ):
        yield Figure(
            f"server_{key}_to_engine",
            f"{words}, {_IN_PROCESS} clients, no recovery, to AsyncLocalREPLEnv",
            unit,
            _samples(ours, value),
            _samples(engine, value),
            alone,
        )
    yield Figure(
        "server_generator",
        "CPU of the load generator for a step, 8 clients",
        "us",
        _samples(loads["restart", 8], _generator),
        _samples(loads["floor", 8], _generator),
        "the same, at the floor",
    )


Value = Callable[[Load], float]


def _values(time: ProcessorTime) -> tuple[tuple[str, str, str, Value], ...]:
    """Values shown of each load: the key, the words, the unit and the function."""
    return (
        ("rate", "steps per second", "/s", _rate),
        ("p50", "step, p50", "ms", lambda each: each.quantile(0.5)),
        ("p99", "step, p99", "ms", lambda each: each.quantile(0.99)),
        ("cpu", f"CPU of a step, {time.told}", "us", _cpu),
    )


def _of_peer(loads: Loads, name: str) -> dict[str, Samples]:
    return {
        f"server_{key}_{clients}": _samples(loads[name, clients], value)
        for clients in CLIENTS
        for key, _, _, value in _values(ProcessorTime(None))
    }


def _samples(loads: list[Load], value: Value) -> Samples:
    return Samples(tuple(map(value, loads)))


def _rate(load: Load) -> float:
    return load.rate


def _cpu(load: Load) -> float:
    return load.cpu


def _generator(load: Load) -> float:
    return load.generator

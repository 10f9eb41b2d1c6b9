"""Steps per second and how long each takes, by how many clients there are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, process_time

from repl_env import AsyncLocalREPLEnv
from repl_sandbox import AsyncSandbox

from ..figure import Figure
from ..report import Others
from ..samples import Samples
from ..work import STEP
from .generator import Load, run, steps
from .served import Server

CLIENTS = (1, 8, 32, 128)
_SECONDS = 2.0  # of stepping for each load
_ROUNDS = 3
_FLOOR_IS = "a server of such frames, no session"
_ENDLESS = 10**9

Loads = dict[tuple[str, int], list[Load]]
Stepped = Callable[[int], Load]


def stepping(servers: Mapping[str, Server]) -> tuple[list[Figure], Others]:
    """Every figure of steps, and those of the peers among `servers`.

    `servers` are "restart" and "snapshot", which are ours, "floor", and the peers by their names.
    """
    who: dict[str, Stepped] = {name: _over(server) for name, server in servers.items()}
    loads = _taken({**who, "in process": _in_process})
    peers = [name for name in servers if name not in ("restart", "snapshot", "floor")]
    figures = [*_ours(loads), *_beside(loads, "OpenEnv repl" if "OpenEnv repl" in peers else None)]
    return figures, {name: _of_peer(loads, name) for name in peers}


def _over(server: Server) -> Stepped:
    return lambda clients: steps(server.url, clients, _SECONDS)


def _taken(who: Mapping[str, Stepped]) -> Loads:
    """All loads in turn, so that everyone meets the same state of the machine."""
    loads: Loads = defaultdict(list)
    for number in range(_ROUNDS):
        for clients in CLIENTS:
            for name in list(who) if number % 2 else reversed(list(who)):
                loads[name, clients].append(who[name](clients))
    return loads


def _ours(loads: Loads) -> Iterator[Figure]:
    for key, who, with_ in (
        ("", "restart", "no recovery"),
        ("_recovery", "snapshot", "with recovery"),
    ):
        for clients in CLIENTS:
            ours, floor = loads[who, clients], loads["floor", clients]
            told = f"{clients} client{'s'[: clients > 1]}, {with_}"
            yield Figure(
                f"server_rate{key}_{clients}",
                f"steps per second, {told}",
                "/s",
                _rates(ours),
                _rates(floor),
                _FLOOR_IS,
            )
            for part in (50, 99):
                yield Figure(
                    f"server_p{part}{key}_{clients}",
                    f"step, p{part}, {told}",
                    "ms",
                    _quantiles(ours, part),
                    _quantiles(floor, part),
                    _FLOOR_IS,
                )


def _beside(loads: Loads, peer: str | None) -> Iterator[Figure]:
    """What goals compare with: the peer, and the same steps without a server."""
    for key, who, with_ in (
        ("", "restart", "no recovery"),
        ("_recovery", "snapshot", "with recovery"),
    ):
        if peer is not None:
            yield Figure(
                f"server_rate{key}_to_peer",
                f"steps per second, 8 clients, {with_}, to OpenEnv's with smolagents' interpreter",
                "/s",
                _rates(loads[who, 8]),
                _rates(loads[peer, 8]),
                peer,
            )
    yield Figure(
        "server_rate_to_engine",
        "steps per second, 8 clients, no recovery, to AsyncLocalREPLEnv",
        "/s",
        _rates(loads["restart", 8]),
        _rates(loads["in process", 8]),
        "8 in one event loop, no server",
    )
    yield Figure(
        "server_generator",
        "CPU of the load generator for a step, 8 clients",
        "us",
        Samples(tuple(load.cpu for load in loads["restart", 8])),
        Samples(tuple(load.cpu for load in loads["floor", 8])),
        "the same, at the floor",
    )


def _of_peer(loads: Loads, name: str) -> dict[str, float]:
    figures = {}
    for clients in CLIENTS:
        taken = loads[name, clients]
        figures[f"server_rate_{clients}"] = _rates(taken).median
        figures[f"server_p50_{clients}"] = _quantiles(taken, 50).median
        figures[f"server_p99_{clients}"] = _quantiles(taken, 99).median
    return figures


def _rates(loads: list[Load]) -> Samples:
    return Samples(tuple(load.rate for load in loads))


def _quantiles(loads: list[Load], part: int) -> Samples:
    return Samples(tuple(load.quantile(part / 100) for load in loads))


def _in_process(clients: int) -> Load:
    return run(_environments(clients))


async def _environments(clients: int) -> Load:
    """So many environments stepped on one event loop, with nothing between."""
    async with AsyncSandbox(recovery="restart") as sandbox:
        envs = [AsyncLocalREPLEnv(sandbox=sandbox) for _ in range(clients)]
        for env in envs:
            await env.reset(max_iterations=_ENDLESS)
            await env.execute(STEP)
        cpu, start = process_time(), perf_counter()
        taken = await asyncio.gather(*(_step_until(env, start + _SECONDS) for env in envs))
        elapsed, cpu = perf_counter() - start, process_time() - cpu
        await asyncio.gather(*(env.close() for env in envs))
    ordered = sorted(second for each in taken for second in each)
    return Load(len(ordered) / elapsed, tuple(ordered), cpu / len(ordered))


async def _step_until(env: AsyncLocalREPLEnv, end: float) -> list[float]:
    taken: list[float] = []
    now = perf_counter()
    while now < end:
        await env.execute(STEP)
        before, now = now, perf_counter()
        taken.append(now - before)
    return taken

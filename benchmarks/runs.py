"""Cost of a model's runs without the model: turns, sub-calls, runs below runs, many trees.

The model is scripted; its own time is left out, or a few microseconds. Sessions recover, as users
have them. Of the peers only `rlms` is measured: the wheel of OpenEnv does not contain its repl_env.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from repl_env import AsyncLocalREPLEnv
from repl_env.rlm import (
    RLM,
    Budget,
    Completion,
    ModelRequest,
    ModelUsage,
    RLMRunResult,
    ScriptedModel,
)
from repl_sandbox import AsyncSandbox, Sandbox

from .figure import ROOMY, Figure
from .samples import Samples
from .work import (
    ASK,
    ASK_BATCH,
    ASK_CHILD,
    BATCH_PROMPTS,
    MODEL_SECONDS,
    RUN_TURNS,
    STEP,
    TEXT_10_MB,
    block,
    timing,
)

_TREES = 100
_TREES_ROUNDS = 4
_PART = RUN_TURNS // 4
_USAGE = ModelUsage(1, 1)  # without one the scripted model counts words, which takes longer

Reply = Callable[[ModelRequest], Awaitable[str]]
Figures = AsyncIterator[Figure]


def turn() -> list[Figure]:
    """Turns of a run on 10 MB: from one reply of the model to the next question to it."""
    return _made(_turn)


async def _turn() -> Figures:
    floor_is = "AsyncLocalREPLEnv.execute('x = 1')"
    turns, floors = await _turns(model_seconds=MODEL_SECONDS)
    takes = f"{MODEL_SECONDS * 1e3:.0f} ms"
    yield Figure(
        "turn",
        f"turn of a run on 10 MB, of {RUN_TURNS}, the model takes {takes} (not counted)",
        "ms",
        _samples(turns),
        _samples(floors),
        floor_is,
    )
    yield Figure(
        "turn_late",
        f"the last {_PART} of these turns",
        "ms",
        _samples(turns[-_PART:]),
        _samples(floors[-_PART:]),
        "the same, in turn with these",
    )
    turns, floors = await _turns(model_seconds=0.0)
    yield Figure(
        "turn_at_once",
        f"turn of a run on 10 MB, of {RUN_TURNS}, the model answers at once",
        "ms",
        _samples(turns),
        _samples(floors),
        floor_is,
    )


async def _turns(*, model_seconds: float) -> tuple[list[float], list[float]]:
    """The seconds of each turn, and of an execution in turn with each.

    The model takes `model_seconds` before the execution and after it, so that the copy that a
    session makes of itself after each answer is done before the next clock starts, as it is for
    whoever asks a model; with none both sessions' copies fall into what is measured.
    """
    async with _environments() as (sandbox, floor_env):
        turns, floors, returned = [], [], 0.0

        async def reply(request: ModelRequest) -> str:
            nonlocal returned
            asked = time.perf_counter()
            if returned:
                turns.append(asked - returned)
            await asyncio.sleep(model_seconds)
            floors.append(await _timed(lambda: floor_env.execute(STEP)))
            await asyncio.sleep(model_seconds)
            text = block(STEP if len(floors) <= RUN_TURNS else "FINAL(x)")
            returned = time.perf_counter()
            return text

        await _answered(_rlm(sandbox, reply).arun("What is x?", TEXT_10_MB), "1")
    return turns, floors[1:]  # the first one is before any turn has ended


def subcalls() -> list[Figure]:
    """From `llm_query` in a cell to its answer, timed there, beside a bare function of the host."""
    return _made(_subcalls)


async def _subcalls() -> Figures:
    async def bare(prompt: str) -> str:
        return "an answer"

    async def bare_batch(prompts: list[str]) -> list[str]:
        return ["an answer"] * len(prompts)

    tools = {"bare": bare, "bare_batch": bare_batch}
    of_one = "a function of the host that returns a text"
    of_many = f"such a function that returns {BATCH_PROMPTS}"
    one = timing(200, ours=ASK, floor="bare('What is this?')")
    many = timing(100, ours=ASK_BATCH, floor=f"bare_batch(['What is this?'] * {BATCH_PROMPTS})")
    for key, name, code, floor_is in (
        ("subcall", "llm_query, there and back", one, of_one),
        ("subcall_batch", f"llm_query_batched of {BATCH_PROMPTS}", many, of_many),
    ):
        taken = await _timed_in_a_cell(code, tools)
        yield Figure(key, name, "ms", taken["ours"], taken["floor"], floor_is)


def children() -> list[Figure]:
    """A run of one turn below a run: its session, its turn, its answer."""
    return _made(_children)


async def _children() -> Figures:
    with Sandbox(limits=ROOMY) as sandbox:
        sessions = AsyncSandbox.of(sandbox)

        async def bare(prompt: str) -> str:
            return await _session(sessions)

        code = timing(30, ours=ASK_CHILD, floor="bare('What is this?')")
        taken = await _timed_in_a_cell(code, {"bare": bare}, sandbox)
    floor_is = "session, 1+1 and close by a function of the host"
    yield Figure(
        "child", "rlm_query: a child run of one turn", "ms", taken["ours"], taken["floor"], floor_is
    )


def trees() -> list[Figure]:
    """A hundred runs at once, each with a child, beside as many sessions at once."""
    return _made(_trees)


async def _trees() -> Figures:
    rates: dict[str, list[float]] = {"ours": [], "floor": []}
    with Sandbox(limits=ROOMY) as sandbox:
        sessions = AsyncSandbox.of(sandbox)
        rlm = _rlm(sandbox, _tree_reply)

        async def ours() -> None:
            tree = (_answered(rlm.arun("What is this?"), "an answer") for _ in range(_TREES))
            await asyncio.gather(*tree)

        async def floor() -> None:
            await asyncio.gather(*(_session(sessions) for _ in range(2 * _TREES)))

        tasks = {"ours": ours, "floor": floor}
        for number in range(_TREES_ROUNDS):
            for name in tasks if number % 2 else reversed(tasks):
                rates[name].append(_TREES / await _timed(tasks[name]))
    yield Figure(
        "trees",
        f"trees per second, {_TREES} at once, each a run and its child",
        "/s",
        _samples(rates["ours"]),
        _samples(rates["floor"]),
        f"{2 * _TREES} sessions at once, 2 for a tree",
    )


async def _tree_reply(request: ModelRequest) -> str:
    """A root asks one child, a child answers at once, and so does the model without a session."""
    if request.origin.purpose == "query":
        return "an answer"
    deep = "." in request.origin.run
    return block("FINAL('an answer')" if deep else f"FINAL({ASK_CHILD})")


async def _timed_in_a_cell(
    code: str, tools: dict[str, Any], sandbox: Sandbox | None = None
) -> dict[str, Samples]:
    """The samples that a cell takes of its own calls, by `timing`."""

    async def reply(request: ModelRequest) -> str:
        root = request.origin.run == "0" and request.origin.purpose == "turn"
        return block(code) if root else await _tree_reply(request)

    result = await _rlm(sandbox, reply, tools=tools).arun("How long does it take?")
    taken: Any = result.answer_value
    if result.stop_reason != "answer":
        raise RuntimeError(f"a benchmark run came to {result.stop_reason}: {result.messages[-1]}")
    return {name: _samples(values) for name, values in taken.items()}


async def _session(sandbox: AsyncSandbox) -> str:
    session = await sandbox.session()
    try:
        return str((await session.run("1+1")).value)
    finally:
        await session.close()


@asynccontextmanager
async def _environments() -> AsyncIterator[tuple[Sandbox, AsyncLocalREPLEnv]]:
    """A sandbox for a run, and an environment on it that has the same context."""
    with Sandbox(limits=ROOMY) as sandbox:
        env = AsyncLocalREPLEnv(sandbox=sandbox)
        await env.reset(context=TEXT_10_MB, max_iterations=10**9)
        try:
            yield sandbox, env
        finally:
            await env.close()


def _rlm(sandbox: Sandbox | None, reply: Reply, **arguments: Any) -> RLM:
    async def answer(request: ModelRequest) -> Completion:
        return Completion(await reply(request), _USAGE)

    if sandbox is not None:
        arguments["sandbox"] = sandbox
    return RLM(
        ScriptedModel(answer),
        max_iterations=RUN_TURNS + 1,
        budget=Budget(calls=None),
        **arguments,
    )


async def _answered(run: Awaitable[RLMRunResult], answer: str) -> None:
    result = await run
    if result.final_answer != answer:
        raise RuntimeError(f"a benchmark run came to {result.final_answer!r}: {result.stop_reason}")


async def _timed(action: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await action()
    return time.perf_counter() - start


def _samples(values: list[float]) -> Samples:
    return Samples(tuple(values))


def _made(figures: Callable[[], Figures]) -> list[Figure]:
    async def collect() -> list[Figure]:
        return [figure async for figure in figures()]

    work: Coroutine[Any, Any, list[Figure]] = collect()
    return asyncio.run(work)

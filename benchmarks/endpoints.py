"""Time that the client of an endpoint adds to the endpoint's own time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import aiohttp

from repl_env.interfaces import Message
from repl_env.rlm import ModelRequest, OpenAIModel

from .figure import Figure
from .samples import interleave

_TOGETHER = 64
_DELAY = 0.05  # seconds that the endpoint takes for an answer, however many it gives at once
_ROUNDS = 20
_ROOT = Path(__file__).parents[1]
_MESSAGES: list[Message] = [{"role": "user", "content": "how many words are in here"}]


def subcalls() -> Iterator[Figure]:
    """64 questions at once to an endpoint that takes 50 ms, beside a raw client of aiohttp."""
    with _endpoint() as base_url, asyncio.Runner() as runner:
        model = OpenAIModel("m", base_url=base_url, max_retries=0)
        session = runner.run(_session())

        async def ask() -> str:
            return (await model.complete(ModelRequest(messages=_MESSAGES))).text

        async def post() -> str:
            body = {"model": "m", "messages": _MESSAGES}
            async with session.post(f"{base_url}/chat/completions", json=body) as response:
                answer: str = (await response.json())["choices"][0]["message"]["content"]
                return answer

        def timed(call: Callable[[], Awaitable[str]]) -> Callable[[], float]:
            return lambda: runner.run(_together(call))

        try:
            taken = interleave({"ours": timed(ask), "floor": timed(post)}, _ROUNDS)
        finally:
            runner.run(model.close())
            runner.run(session.close())
    version = aiohttp.__version__
    yield Figure(
        "subcalls",
        f"{_TOGETHER} questions at once, 50 ms each",
        "ms",
        taken["ours"],
        taken["floor"],
        f"the same requests by aiohttp {version}, nothing checked",
    )


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def _together(call: Callable[[], Awaitable[str]]) -> float:
    start = perf_counter()
    answers = await asyncio.gather(*(call() for _ in range(_TOGETHER)))
    taken = perf_counter() - start
    if set(answers) != {"ok"}:
        raise RuntimeError("the endpoint says ok, and something else came")
    return taken


@contextmanager
def _endpoint() -> Iterator[str]:
    """The endpoint of the tests as a process of its own: it must not share our interpreter."""
    command = [sys.executable, "-m", "tests.repl_env.llm.endpoint", "--delay", str(_DELAY)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        yield process.stdout.readline().strip()
        process.stdin.close()

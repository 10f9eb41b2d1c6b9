"""Programs that use OpenEnv's client classes, with results printed as JSON.

`python official_client.py URL [STORY...]` runs where only OpenEnv's client is installed, of any
generation. It does what is below against the server at URL, and prints what came of each story: a
line with what was seen, or with the error that ended it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from openenv.core import EnvClient, GenericEnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.mcp_client import MCPToolClient

QUESTION = {
    "context": "one two three",
    "task_prompt": "How many words?",
    "expected_answer": "3",
    "seed": 7,
    "episode_id": "episode-1",
}
TWO_CELLS = ({"code": "count = len(context.split())\ncount"}, {"code": "FINAL(count)"})
# Over the 16 MiB that OpenEnv's server takes, and what a list of documents easily comes to.
LONG_CONTEXT = "x" * (20 << 20)


class RecordedClient(GenericEnvClient):
    """Keeps the frames of a conversation as they come and go."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url=base_url)
        self.frames: list[dict[str, Any]] = []

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] != "close":  # which has no reply, and not all send by this method
            self.frames.append({"client": message})
        await super()._send(message)

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await super()._receive()
        self.frames.append({"server": message})
        return message


class CodeAction(Action):
    code: str


class CodeObservation(Observation):
    stdout: str
    iteration: int


class CodeState(State):
    iteration: int


class CodeEnv(EnvClient[CodeAction, CodeObservation, CodeState]):
    """A typed client, as OpenEnv's users write them: it knows the fields that it is about."""

    def _step_payload(self, action: CodeAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[CodeObservation]:
        seen = payload["observation"]
        observation = CodeObservation(
            stdout=seen["result"]["stdout"],
            iteration=seen["iteration"],
            metadata=seen.get("metadata", {}),
            reward=payload["reward"],
            done=payload["done"],
        )
        return StepResult(observation, payload["reward"], payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> CodeState:
        state: CodeState = CodeState.model_validate(payload)
        return state


def told(result: StepResult[dict[str, Any]]) -> dict[str, Any]:
    """A result of a generic client as JSON."""
    return {"observation": result.observation, "reward": result.reward, "done": result.done}


async def refusal(doing: Awaitable[Any]) -> str:
    """The error that the client raises; "" if none."""
    try:
        await doing
    except RuntimeError as error:
        return str(error)
    return ""


async def episode(url: str) -> dict[str, Any]:
    """Reset, step, state, an answer with its reward; and the frames of it all."""
    async with RecordedClient(url) as env:
        reset = await env.reset(**QUESTION)
        step = await env.step(TWO_CELLS[0])
        state = await env.state()
        end = await env.step(TWO_CELLS[1])
        after = await env.state()
        again = await env.reset(**QUESTION)
        return {
            "reset": told(reset),
            "step": told(step),
            "state": state,
            "end": told(end),
            "state_after": after,
            "again": told(again),
            "frames": env.frames,
        }


async def refusals(url: str) -> dict[str, Any]:
    """Invalid requests are refused, and the session is the same afterwards."""
    async with RecordedClient(url) as env:
        early = await refusal(env.step({"code": "1"}))
        await env.reset()
        await env.step({"code": "kept = 41"})
        wrong_field = await refusal(env.step({"code": "1", "no_such_field": 1}))
        wrong_type = await refusal(env.step({"code": ["1"]}))
        unknown = await refusal(env._send_and_receive({"type": "no-such-type", "data": {}}))
        raised = await env.step({"code": "1 / 0"})
        kept = await env.step({"code": "kept + 1"})
        await env.step({"code": "FINAL(1)"})
        late = await refusal(env.step({"code": "1"}))
        return {
            "early": early,
            "wrong_field": wrong_field,
            "wrong_type": wrong_type,
            "unknown": unknown,
            "raised": told(raised),
            "kept": told(kept),
            "late": late,
            "frames": env.frames,
        }


async def together(url: str) -> dict[str, Any]:
    """Two clients at once, step by step in turns: each has a namespace of its own."""
    async with GenericEnvClient(base_url=url) as one, GenericEnvClient(base_url=url) as two:
        await asyncio.gather(one.reset(context="one"), two.reset(context="two"))
        await asyncio.gather(one.step({"code": "mine = context"}), two.step({"code": "other = 1"}))
        first, second = await asyncio.gather(
            one.step({"code": "mine, 'other' in dir()"}),
            two.step({"code": "context, 'mine' in dir()"}),
        )
        return {"one": told(first), "two": told(second)}


async def typed(url: str) -> dict[str, Any]:
    """A subclass of EnvClient with types of its own."""
    async with CodeEnv(base_url=url) as env:
        reset = await env.reset(**QUESTION)
        step = await env.step(CodeAction(code="count = len(context.split())\ncount"))
        state = await env.state()
        end = await env.step(CodeAction(code="FINAL(count)"))
        return {
            "reset": reset.observation.model_dump(),
            "step": step.observation.model_dump(),
            "state": state.model_dump(),
            "end": end.observation.model_dump(),
        }


def waiting(url: str) -> dict[str, Any]:
    """`.sync()`: the same without an event loop of one's own."""
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset(**QUESTION)
        step = env.step(TWO_CELLS[0])
        state = env.state()
        end = env.step(TWO_CELLS[1])
        return {"step": told(step), "state": state, "end": told(end)}


def plain(url: str) -> dict[str, Any] | None:
    """A client in a plain `with`; None where the generation has no such thing."""
    client = GenericEnvClient(base_url=url)
    try:
        env = client.__enter__()
    except TypeError:
        return None
    try:
        env.reset(**QUESTION)
        return {"step": told(env.step(TWO_CELLS[0])), "end": told(env.step(TWO_CELLS[1]))}
    finally:
        client.__exit__(None, None, None)


async def more_sessions(url: str) -> dict[str, Any] | None:
    """`new_session()`: another session of the same client; None where the generation has none."""
    async with GenericEnvClient(base_url=url) as env:
        if not hasattr(env, "new_session"):
            return None
        child = await env.new_session()
        await env.reset(context="parent")
        await child.reset(context="child")
        return {
            "parent": told(await env.step({"code": "context"})),
            "child": told(await child.step({"code": "context"})),
        }


async def odd_text(url: str) -> dict[str, Any]:
    """Values that JSON cannot represent: lone surrogates and infinity."""
    async with GenericEnvClient(base_url=url) as env:
        await env.reset()
        surrogates = await env.step({"code": r"print('a\ud800b')"})
        numbers = await env.step({"code": "FINAL(float('inf'))"})
        return {"surrogates": told(surrogates), "numbers": told(numbers)}


async def long_context(url: str) -> dict[str, Any]:
    """A context of 20 MiB, whole in one frame."""
    async with GenericEnvClient(base_url=url) as env:
        await env.reset(context=LONG_CONTEXT)
        step = await env.step({"code": "len(context)"})
        state = await env.state()
        return {"step": told(step), "context_length": state["context_length"]}


async def impatient(url: str) -> dict[str, Any]:
    """A client that gives up on a step drops its socket; what comes next must say so."""
    async with GenericEnvClient(base_url=url, message_timeout_s=1.0) as env:
        await env.reset()
        await env.step({"code": "kept = 1"})
        try:
            await env.step({"code": "import time; time.sleep(600)"})
        except TimeoutError:
            gave_up = True
        else:
            gave_up = False
        await env.disconnect()  # older clients keep the socket, with a reply to come
        after = await refusal(env.step({"code": "kept"}))
        await env.reset()
        return {"gave_up": gave_up, "after": after, "fresh": told(await env.step({"code": "1"}))}


async def tools(url: str) -> dict[str, Any]:
    """The client of MCP tools, whose session is the WebSocket's and HTTP's at once (from 0.10)."""
    async with MCPToolClient(base_url=url) as env:
        found = await env.list_tools()
        reset = await env.reset(**QUESTION)
        called = await env.call_tool("execute", code="len(context.split())")
        state = await env.state()
        end = await env.call_tool("submit_answer", answer="3")
        return {
            "names": [tool.name for tool in found],
            "reset": reset.done,
            "called": called["structuredContent"]["result"]["value"],
            "step_count": state.step_count,
            "done": end["structuredContent"]["done"],
            "error": end["isError"],
        }


async def keyed(url: str) -> str | None:
    """The password of `url` as a key in the headers; None where the generation sends none."""
    login, _, host = url.removeprefix("http://").rpartition("@")
    headers = {"Authorization": f"Bearer {login.partition(':')[2]}"}
    try:
        client = GenericEnvClient(base_url=f"http://{host}", headers=headers)
    except TypeError:
        return None
    async with client as env:
        await env.reset()
        result = await env.step({"code": "6 * 7"})
        value: str = result.observation["result"]["value"]
        return value


async def keyless(url: str) -> None:
    """Without the login of `url` no client is admitted."""
    async with GenericEnvClient(base_url=f"http://{url.rpartition('@')[2]}") as env:
        await env.reset()


STORIES: dict[str, Callable[[str], Any]] = {
    story.__name__: story
    for story in (
        episode,
        refusals,
        together,
        typed,
        waiting,
        plain,
        more_sessions,
        odd_text,
        long_context,
        impatient,
        tools,
        keyed,
        keyless,
    )
}
# Stories run by default: those that every generation supports, with no key in the URL.
OPEN = [name for name in STORIES if name not in {"tools", "keyed", "keyless"}]


def main() -> None:
    """See the module."""
    url, *names = sys.argv[1:]
    for name in names or OPEN:
        try:
            result = STORIES[name](url)
            if asyncio.iscoroutine(result):
                result = asyncio.run(result)
        except Exception as error:  # noqa: BLE001 - whatever it was, the test is told
            result = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps({"story": name, "told": result}), flush=True)


if __name__ == "__main__":
    main()

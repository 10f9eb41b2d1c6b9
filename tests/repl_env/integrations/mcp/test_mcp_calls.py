"""Calls of the tools, through the SDK's own client and server, on sessions that fail."""

from __future__ import annotations

import asyncio
import logging

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from repl_env.env.environment import REPLEnvironment
from repl_env.errors import EpisodeAborted
from repl_env.integrations.mcp import (
    MAX_CHARACTERS,
    EnvironmentToolSession,
    ToolCalls,
    reporting,
    server,
)
from repl_env.integrations.mcp_tools import result_of_cell


class Failing:
    """A session that raises."""

    def __init__(self, error):
        self.error = error

    async def reset(self, **request):
        raise self.error

    async def follow_up(self, task_prompt, max_iterations):
        raise self.error

    async def step(self, action, timeout_s, on_output):
        raise self.error


def client(played, **options):
    return Client(server("what it is", ToolCalls(played, **options)))


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError])
async def test_an_infrastructure_error_is_an_error_that_refers_to_the_log(caplog, kind):
    with caplog.at_level(logging.CRITICAL, logger="repl_env.integrations.mcp"):
        async with client(Failing(kind("/secret/path"))) as asking:
            with pytest.raises(MCPError) as raised:
                await asking.call_tool("execute", {"code": "1"})

    assert raised.value.code == -32603
    assert "secret" not in str(raised.value.error)
    assert len(raised.value.data["id"]) == 32


async def test_a_lost_session_is_reported_to_the_model():
    async with client(Failing(EpisodeAborted("sandbox", "/secret/path broke"))) as asking:
        result = await asking.call_tool("execute", {"code": "1"})

    assert result.is_error
    assert "Call `reset` to begin a new one" in text(result)
    assert "secret" not in text(result)


async def test_reset_before_the_first_task_has_nothing_to_keep(sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    async with client(EnvironmentToolSession(environment)) as asking:
        result = await asking.call_tool("reset", {"keep_variables": True})

    assert result.is_error
    assert "There is no session to go on in" in text(result)


async def test_the_last_allowed_iteration_ends_the_task(sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    async with client(EnvironmentToolSession(environment)) as asking:
        await asking.call_tool("reset", {"max_iterations": 1})
        result = await asking.call_tool("execute", {"code": "print('once')"})
    await environment.close_async()

    assert text(result).startswith("once\nMaximum iterations (1) reached.")
    assert "[The task is over without an answer.]" in text(result)


def test_figures_are_images_and_not_in_the_structured_content_too(make):
    env = make()
    env.reset()
    observation = env.execute("'seen'").observation
    observation.result.figures = ["iVBORw0KGgo=", "AAAA"]

    result = result_of_cell(observation)

    assert text(result) == "'seen'"
    assert [(each.data, each.mime_type) for each in result.content if each.type == "image"] == [
        ("iVBORw0KGgo=", "image/png"),
        ("AAAA", "image/png"),
    ]
    assert result.structured_content["result"]["figures"] == []


async def test_contexts_of_the_server_apply_where_a_reset_has_none(sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    async with client(EnvironmentToolSession(environment), contexts={"given": "first"}) as asking:
        before = await asking.call_tool("execute", {"code": "given"})
        await asking.call_tool("reset", {"context": "other"})
        other = await asking.call_tool("execute", {"code": "(context, 'given' in globals())"})
        await asking.call_tool("reset", {"task_prompt": "again"})
        again = await asking.call_tool("execute", {"code": "given"})
    await environment.close_async()

    assert [text(each) for each in (before, other, again)] == [
        "'first'",
        "('other', False)",
        "'first'",
    ]


async def test_a_subscriber_that_reads_nothing_blocks_nothing_and_uses_no_memory():
    told, begun = [], asyncio.Event()

    async def never(seconds, message):
        told.append(message)
        begun.set()
        await asyncio.Event().wait()

    async with reporting(never) as tell:
        for _ in range(100):
            tell("stdout", "x" * 1000)
        await begun.wait()

    (message,) = told
    assert message == f"... {100_000 - MAX_CHARACTERS} characters ...\n{'x' * MAX_CHARACTERS}"

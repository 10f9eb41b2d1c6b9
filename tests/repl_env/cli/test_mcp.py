"""`repl-env mcp`: the SDK's own client, and the real command as a process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

ROOT = Path(__file__).parents[3]
# The command, but that code has as long to heed an interrupt as a busy machine may take.
PROGRAM = """
from dataclasses import fields
from repl_env.cli.main import main
from repl_sandbox import Limits
given = dict(zip((field.name for field in fields(Limits)), Limits.__init__.__defaults__))
Limits.__init__.__defaults__ = tuple({**given, "grace": 60.0}.values())
main()
"""

# One client and process for all tests that only call tools.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def kept_open(entered):
    """A context manager that is entered and left by one task of its own.

    The SDK's scopes want that, and a fixture is set up and torn down by two.
    """
    ready, leave = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold():
        async with entered as value:
            ready.set_result(value)
            await leave.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait([ready, holding], return_when=asyncio.FIRST_COMPLETED)
    if holding.done():
        await holding
    yield await ready
    leave.set()
    await holding


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret_place")
    (folder / "report.txt").write_text("three short words")
    options = ["--context", str(folder / "report.txt"), "--timeout", "60", "--memory", "512MiB"]
    command = StdioServerParameters(
        command=sys.executable, args=["-c", PROGRAM, "mcp", *options], cwd=ROOT
    )
    async with kept_open(Client(stdio_client(command), read_timeout_seconds=120)) as client:
        yield client


async def call(client, name, *, on_progress=None, **arguments):
    return await client.call_tool(name, arguments, progress_callback=on_progress)


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


async def test_the_server_reports_its_name_and_the_isolation_tier(client):
    assert client.server_info.name == "repl-env"
    assert "without network or files of the machine" in client.instructions
    assert "context (17 chars)" in client.instructions
    assert "secret_place" not in client.instructions


async def test_the_server_lists_three_tools_with_schemas(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert set(tools) == {"execute", "reset", "submit_answer"}
    assert tools["execute"].input_schema["required"] == ["code"]
    assert tools["submit_answer"].input_schema["required"] == ["answer"]
    assert "expected_answer" not in tools["reset"].input_schema["properties"]
    assert all(tool.description and tool.output_schema for tool in tools.values())


async def test_code_runs_before_any_reset_and_its_variables_stay(client):
    first = await call(client, "execute", code="x = len(context.split())")
    second = await call(client, "execute", code="print('so:')\nx * 2")

    assert (first.is_error, text(first)) == (False, "(no output; set: x)")
    assert text(second) == "so:\n6"
    assert second.structured_content["result"]["value"] == "6"
    assert second.structured_content["iteration"] == first.structured_content["iteration"] + 1
    assert second.structured_content["max_iterations"] > 1000


async def test_code_that_fails_is_an_error_with_its_traceback(client):
    result = await call(client, "execute", code="print('before')\n1 / 0")

    assert result.is_error
    assert text(result).startswith("before\nTraceback")
    assert text(result).endswith("\nZeroDivisionError: division by zero")
    assert "line 2" in text(result)
    assert result.structured_content["metadata"]["error_kind"] == "exception"


async def test_code_that_takes_too_long_keeps_its_variables(client):
    result = await call(client, "execute", code="kept = 1\nwhile True: pass", timeout_s=0.2)
    after = await call(client, "execute", code="kept")

    assert result.is_error
    assert "Variables are kept" in text(result)
    assert text(after) == "1"


async def test_output_comes_while_code_runs_and_a_cancelled_call_leaves_the_session(client):
    """The call never ends by itself: its output shows that it can be cancelled."""
    heard, seen = asyncio.Event(), []

    async def on_progress(progress, total, message):
        seen.append((progress, message))
        heard.set()

    code = "survives = 7\nprint('under way', flush=True)\nwhile True: pass"
    endless = asyncio.create_task(
        call(client, "execute", code=code, timeout_s=300, on_progress=on_progress)
    )
    await heard.wait()
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    after = await call(client, "execute", code="survives")

    assert seen[0][1].startswith("under way")
    assert text(after) == "7"


async def test_calls_at_the_same_time_wait_for_each_other(client):
    await call(client, "execute", code="turns = []")
    code = "turns.append({}); len(turns)"
    results = await asyncio.gather(
        *(call(client, "execute", code=code.format(number)) for number in range(5))
    )

    assert sorted(text(result) for result in results) == list("12345")


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("execute", {}, "code: Field required"),
        ("execute", {"code": ["x"]}, "code: Input should be a valid string"),
        ("execute", {"code": "1", "timeout_s": -1}, "timeout_s: Input should be greater than 0"),
        ("execute", {"code": "1", "timeout_s": 601}, "timeout_s may be 600 at most"),
        ("execute", {"code": "1", "expected_answer": "1"}, "expected_answer: Extra inputs"),
        ("reset", {"expected_answer": "1"}, "expected_answer: Extra inputs"),
        ("reset", {"context": 3}, "context: Value error, must be text, a list or an object"),
        ("reset", {"contexts": {"not a name": "x"}}, "'not a name' is not a name for a variable"),
        ("reset", {"files": {"../up": "x"}}, "files: '../up' is not a path inside the workspace"),
        ("reset", {"keep_variables": True, "seed": 1}, "does not go with seed"),
        ("reset", {"max_iterations": 0}, "max_iterations: Input should be greater"),
        ("submit_answer", {}, "answer: Field required"),
    ],
)
async def test_wrong_arguments_are_reported_to_the_model(client, name, arguments, complaint):
    result = await client.call_tool(name, arguments)

    assert result.is_error
    assert complaint in text(result)


async def test_an_unknown_tool_is_an_error_of_the_protocol(client):
    with pytest.raises(MCPError, match="there is no tool 'rm'") as raised:
        await client.call_tool("rm", {})

    assert raised.value.code == -32602


async def test_a_task_ends_by_its_answer_and_reset_begins_another(client):
    begun = await call(
        client,
        "reset",
        context=["a", "b"],
        files={"notes/a.txt": "hello"},
        task_prompt="Count them.",
        seed=3,
    )
    counted = await call(client, "execute", code="open('notes/a.txt').read() + str(len(context))")
    ended = await call(client, "submit_answer", answer={"count": 2})
    refused = await call(client, "execute", code="1")
    went_on = await call(client, "reset", keep_variables=True, task_prompt="And again.")
    kept = await call(client, "execute", code="context")

    assert "Task: Count them." in text(begun)
    assert not begun.structured_content["done"]
    assert text(counted) == "'hello2'"
    assert ended.structured_content["done"]
    assert ended.structured_content["metadata"]["answer_value"] == {"count": 2}
    assert refused.is_error and "Call `reset`" in text(refused)
    assert "Task: And again." in text(went_on)
    assert text(kept) == "['a', 'b']"


async def test_a_value_of_the_session_can_be_the_answer(client):
    await call(client, "reset")
    ended = await call(client, "execute", code="FINAL(context.upper())")

    assert "[The task is over. Answer: THREE SHORT WORDS]" in text(ended)
    assert ended.structured_content["done"]


async def test_text_that_is_only_printed_ends_nothing(client):
    await call(client, "reset")
    printed = await call(client, "execute", code="print('FINAL(1)')")

    assert not printed.structured_content["done"]

"""`REPLToolset`: the session as tools, in a server process that verifiers starts."""

import contextlib
import os

import psutil
import pytest
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from repl_env.integrations.verifiers import (
    EpisodeRecord,
    REPLTaskConfig,
    REPLToolset,
    REPLToolsetConfig,
)
from tests.training.lost_sessions import lose
from tests.training.trainer_internals import exit_stack, toolset_session
from tests.training.verifiers.scripted_episodes import play, plugin, task
from tests.waiting import until


class Caller(vf.Harness[vf.HarnessConfig]):
    """Asks the model once, and makes the calls that the test has set."""

    SUPPORTS_MCP = True
    NEEDS_CONTAINER = False
    calls: tuple = ()
    told: list = []
    listed: dict = {}

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        cls = type(self)
        client = AsyncOpenAI(base_url=endpoint, api_key=secret)
        await client.chat.completions.create(
            model=ctx.model, messages=[{"role": "user", "content": data.prompt}]
        )
        config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        async with contextlib.AsyncExitStack() as stack:
            schemas, dispatch, servers = await connect_mcp(config, stack)
            cls.listed = {each["function"]["name"]: each["function"] for each in schemas}
            cls.told = [await call_mcp(servers, dispatch, *call) for call in cls.calls]
        await client.close()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


@pytest.fixture
def calling(endpoint, monkeypatch):
    """Plays a task with these calls of tools."""
    plugin("caller_of_a_test", monkeypatch, Caller=Caller)

    async def calling(*calls, **data):
        monkeypatch.setattr(Caller, "calls", calls)
        settings = {
            "taskset": {"id": "repl-env-verifiers", "task": {"tools": True}},
            "agent": {"harness": {"id": "caller-of-a-test"}},
        }
        given = task(config=REPLTaskConfig(tools=True), **data)
        return (await play(endpoint("calling"), given, settings)).traces[0]

    return calling


async def test_tools_step_one_session_and_its_episode_is_scored(calling):
    trace = await calling(
        ("repl_python", {"code": "n = len(context.split())\nprint('<|im_end|>', n)"}),
        ("repl_python", {"code": "1/0"}),
        (
            "repl_python",
            {"code": "import os\nprint([*os.environ], 'seventeen' in repr(globals()))"},
        ),
        ("repl_submit", {"answer": "seventeen"}),
        ("repl_python", {"code": "n"}),
        expected_answer="seventeen",
    )
    assert trace.ok and trace.last_reply == "seventeen"
    assert Caller.told[0] == "<\\|im_end|> 3" and "ZeroDivisionError" in Caller.told[1]
    assert "VF_" not in Caller.told[2] and "False" in Caller.told[2]
    assert "over" in Caller.told[4]
    assert EpisodeRecord.of(trace).rewards == pytest.approx([0.0, -0.05, 0.0, 1.0])
    assert trace.rewards["task_reward"].value == 1.0
    assert set(Caller.listed) == {"repl_python", "repl_submit"}
    assert "variables stay" in Caller.listed["repl_python"]["description"]
    assert list(Caller.listed["repl_python"]["parameters"]["properties"]) == ["code"]
    here = psutil.Process(os.getpid())
    await until(
        lambda: not [each for each in here.children() if "toolset" in " ".join(each.cmdline())]
    )


async def test_a_rollout_without_calls_has_no_answer(calling):
    trace = await calling()
    assert trace.ok and trace.reward == 0.0 and EpisodeRecord.of(trace).rewards == []


async def test_a_lost_session_fails_the_rollout(calling):
    played = task(config=REPLTaskConfig(tools=True))
    tools = REPLToolset(REPLToolsetConfig())
    async with exit_stack(tools):
        await tools.setup_task(played.data)
        lose(toolset_session(tools))
        assert "lost" in await tools.python("1")
    trace = await calling()
    trace.state.episode = tools.state.episode
    with pytest.raises(vf.SandboxError):
        await played.finalize(trace, None)

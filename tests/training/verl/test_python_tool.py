"""`REPLTool` as verl's agent loop makes, calls and releases it: once for each call."""

import asyncio
import gc

import psutil
import pytest
from verl.experimental.agent_loop.tool_agent_loop import AgentData
from verl.tools.tool_registry import initialize_tools_from_config

from repl_env.integrations.verl import REPLTool
from tests.internals import init_pid
from tests.training.lost_sessions import lose
from tests.training.trainer_internals import open_trajectories, trajectory_session
from tests.waiting import until

OmegaConf = pytest.importorskip("omegaconf").OmegaConf

ROW = {"create_kwargs": {"context": "a b c", "ground_truth": "3"}}


@pytest.fixture
def tool(tmp_path):
    path = tmp_path / "tools.yaml"
    name = "repl_env.integrations.verl.REPLTool"
    config = {"tools": [{"class_name": name, "config": {"type": "native"}}]}
    OmegaConf.save(OmegaConf.create(config), path)
    (tool,) = initialize_tools_from_config(str(path))
    return tool


def trajectory():
    return AgentData([], [], [], None, None, {}, "r", {})


async def call(tool, code, agent_data, row=ROW):
    """Calls the tool as `ToolAgentLoop._call_tool` does."""
    instance, _ = await tool.create(create_kwargs=row["create_kwargs"])
    try:
        return await tool.execute(instance, {"code": code}, agent_data=agent_data)
    finally:
        await tool.release(instance)


async def test_calls_of_a_trajectory_share_a_session(tool):
    one, other = trajectory(), trajectory()
    text, reward, _ = await call(tool, "n = len(context.split())\nprint('<|im_end|>', n)", one)
    assert (text.text, reward) == ("<\\|im_end|> 3", 0.0)
    assert "NameError" in (await call(tool, "n", other))[0].text
    _, reward, metrics = await call(tool, "FINAL(n)", one)
    assert reward == 1.0 and metrics["done"] and metrics["final_answer"] == "3"
    assert (await call(tool, "n", one))[:2][1] == 0.0


async def test_calls_of_one_turn_are_run_in_order(tool):
    data = trajectory()
    results = await asyncio.gather(
        *(call(tool, "n = globals().get('n', 0) + 1\nprint(n)", data) for _ in range(4))
    )
    assert sorted(result[0].text for result in results) == ["1", "2", "3", "4"]


async def test_the_session_ends_with_its_trajectory(tool):
    data = trajectory()
    await call(tool, "1", data)
    session = trajectory_session(tool, data)
    pid = init_pid(session)
    del data
    gc.collect()
    await until(lambda: not psutil.pid_exists(pid))
    assert open_trajectories(tool) == 0


async def test_an_instance_has_its_session_until_it_is_released(tool):
    instance, _ = await tool.create(context="x", expected_answer="x")
    await tool.execute(instance, {"code": "y = context"})
    _, reward, _ = await tool.execute(instance, {"code": "FINAL(y)"})
    assert reward == 1.0 == await tool.calc_reward(instance)
    await tool.release(instance)
    assert await tool.calc_reward(instance) == 0.0


async def test_a_lost_session_is_reported_as_a_mask(tool):
    data = trajectory()
    await call(tool, "1", data)
    lose(trajectory_session(tool, data))
    _, reward, metrics = await call(tool, "FINAL(3)", data)
    assert reward == 0.0 and metrics["mask"]


async def test_wrong_calls_are_reported(tool):
    assert "code" in (await tool.execute("x", {}, agent_data=trajectory()))[0].text
    with pytest.raises(TypeError, match="isolatoin"):
        REPLTool({"isolatoin": "auto"}, None)

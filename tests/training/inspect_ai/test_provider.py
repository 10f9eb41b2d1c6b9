"""The sandbox "repl-env" of Inspect, by Inspect's own checks of providers."""

import asyncio
import gc

import pytest
from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from repl_env.integrations.inspect_ai import REPLSandboxEnvironment
from tests.training.lost_sessions import lose
from tests.training.trainer_internals import inspect_session


@pytest.fixture
async def sandbox_env(request):
    if request.node.originalname == "test_exec_as_user":
        request.applymarker(pytest.mark.xfail(reason="a session has one user", strict=True))
    made = await REPLSandboxEnvironment.sample_init("task", None, {})
    yield made["default"]
    await REPLSandboxEnvironment.sample_cleanup("task", None, made, False)


async def tool_messages(tmp_path, monkeypatch, tools, *turns):
    """What the tools say in a sample whose model makes the calls of each turn in one message."""
    import inspect_ai
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import ToolCall

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    outputs = []
    for turn, calls in enumerate(turns):
        output = ModelOutput.from_content("mockllm/model", "")
        output.choices[0].message.tool_calls = [
            ToolCall(id=f"{turn}-{number}", function=name, arguments=given, type="function")
            for number, (name, given) in enumerate(calls)
        ]
        outputs.append(output)
    outputs.append(ModelOutput.from_content("mockllm/model", "7"))
    for output in outputs:  # or they are counted, by a tokenizer that is not here
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = Task(
        dataset=[Sample("How many?", target="7", files={"in.txt": "seven"})],
        solver=[use_tools(*tools), generate()],
        scorer=match(),
        sandbox="repl-env",
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = await inspect_ai.eval_async(task, model=model)
    gc.collect()  # Inspect leaves streams unclosed; their warnings are ignored in tests only
    assert log.status == "success", log.error
    return [message for message in log.samples[0].messages if message.role == "tool"]


async def test_the_sandbox_is_found_by_its_name_and_used_by_a_task(tmp_path, monkeypatch):
    from inspect_ai.tool import bash, python

    said = await tool_messages(
        tmp_path,
        monkeypatch,
        [bash(), python()],
        [("python", {"code": "print(open('in.txt').read().upper())"})],
        [("bash", {"command": "id -u"})],
    )
    assert said[0].text.strip() == "SEVEN" and said[1].text.strip().isdigit()


async def test_the_calls_of_one_message_run_side_by_side(tmp_path, monkeypatch):
    """Each waits for a file of the next one, so one after the other none would end."""
    from inspect_ai.tool import bash, python

    wait = "until test -e {0}; do sleep 0.05; done; echo {0}"
    calls = [
        ("bash", {"command": "touch a; " + wait.format("b")}),
        ("bash", {"command": "touch b; " + wait.format("c")}),
        ("python", {"code": "open('c', 'w').close(); print('made')"}),
    ]
    said = await tool_messages(tmp_path, monkeypatch, [bash(timeout=60), python()], calls)
    assert sorted(message.text.strip() for message in said) == ["b", "c", "made"]
    assert [message.error for message in said] == [None] * 3


async def test_a_call_that_kills_the_interpreter_is_a_result_of_its_own(tmp_path, monkeypatch):
    from inspect_ai.tool import bash

    said = await tool_messages(
        tmp_path,
        monkeypatch,
        [bash()],
        [("bash", {"command": "echo kept > f; kill -9 $PPID; sleep 60"})],
        [("bash", {"command": "cat f"})],
    )
    assert "interpreter" in said[0].text and said[1].text.strip() == "kept"


async def test_the_output_of_a_stopped_command_is_kept(sandbox_env):
    with pytest.raises(TimeoutError) as stopped:
        await sandbox_env.exec(["bash", "-c", "echo part; echo more >&2; sleep 60"], timeout=1)
    assert stopped.value.truncated_output == "part\nmore\n"  # type: ignore[attr-defined]
    assert (await sandbox_env.exec(["pgrep", "sleep"])).returncode == 1


async def test_files_are_written_beside_a_command(sandbox_env):
    waits = sandbox_env.exec(["sh", "-c", "until test -e f; do sleep 0.05; done; cat f"])
    command = asyncio.create_task(waits)
    await sandbox_env.write_file("f", "text")
    assert (await command).stdout == "text"


async def test_a_cancelled_command_is_stopped(sandbox_env):
    waits = sandbox_env.exec(["sh", "-c", "touch begun; sleep 60; touch ended"])
    command = asyncio.create_task(waits)
    await sandbox_env.exec(["sh", "-c", "until test -e begun; do sleep 0.05; done"])
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    gone = "while pgrep sleep; do sh -c 'read -t 0.05' 2>&1; done"
    assert (await sandbox_env.exec(["bash", "-c", gone], timeout=60)).success


async def test_a_background_process_does_not_hold_its_command(sandbox_env):
    started = await sandbox_env.exec(["sh", "-c", "sleep 60 & echo on"], timeout=30)
    assert started.stdout == "on\n"
    assert (await sandbox_env.exec(["pgrep", "sleep"])).success


@pytest.mark.parametrize("path", ["/usr/x", "/etc/x", "/x", "/new/x"])
async def test_the_system_is_not_writable(sandbox_env, path):
    with pytest.raises(PermissionError):
        await sandbox_env.write_file(path, "text")


async def test_endless_output_stops_the_command(sandbox_env):
    with pytest.raises(OutputLimitExceededError) as stopped:
        await sandbox_env.exec(["yes"], timeout=60)
    assert stopped.value.truncated_output.endswith("y\n")


async def test_the_text_editor_does_not_end_the_sample(tmp_path, monkeypatch):
    """Its programs are put into /var/tmp, for the distribution that /etc/os-release names."""
    from inspect_ai.tool import text_editor

    view = ("text_editor", {"command": "view", "path": "/workspace/in.txt"})
    [said] = await tool_messages(tmp_path, monkeypatch, [text_editor()], [view])
    assert "seven" in said.text


async def test_unsupported_operations_are_reported():
    with pytest.raises(ValueError, match="REPLSandboxConfig"):
        await REPLSandboxEnvironment.sample_init("task", "compose.yaml", {})
    config = REPLSandboxEnvironment.config_deserialize({"memory": "256MiB"})
    made = await REPLSandboxEnvironment.sample_init("task", config, {})
    env = made["default"]
    with pytest.raises(TimeoutError):
        await env.exec(["sh", "-c", "sleep 60 & sleep 60"], timeout=1)
    assert (await env.exec(["pgrep", "sleep"])).returncode == 1
    lose(inspect_session(env))
    with pytest.raises(SandboxUnavailableError):
        await env.exec(["true"])
    await REPLSandboxEnvironment.sample_cleanup("task", config, made, True)

"""The sandbox "repl-env" of Inspect, by Inspect's own checks of providers."""

import pytest
from inspect_ai.util import SandboxUnavailableError
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


async def test_the_sandbox_is_found_by_its_name_and_used_by_a_task(tmp_path, monkeypatch):
    import inspect_ai
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import bash, python

    monkeypatch.chdir(tmp_path)
    calls = [
        ("python", {"code": "print(open('in.txt').read().upper())"}),
        ("bash", {"command": "id -u"}),
    ]
    outputs = [ModelOutput.for_tool_call("mockllm/model", name, given) for name, given in calls]
    outputs.append(ModelOutput.from_content("mockllm/model", "7"))
    for output in outputs:  # or they are counted, by a tokenizer that is not here
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(
        dataset=[Sample("How many?", target="7", files={"in.txt": "seven"})],
        solver=[use_tools(bash(), python()), generate()],
        scorer=match(),
        sandbox="repl-env",
    )
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    (log,) = await inspect_ai.eval_async(task, model=model)
    assert log.status == "success", log.error
    said = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert said[0].strip() == "SEVEN" and said[1].strip().isdigit()


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

"""`PythonExecutor` behaves as code written for OpenEnv's class expects."""

import os
import signal

import psutil
import pytest

from repl_env.episode import sandboxes
from repl_env.server.python_executor import PythonExecutor
from tests.internals import zygote_pid
from tests.repl_env.environment_internals import set_process_sandbox
from tests.waiting import eventually


@pytest.fixture
def executor(sandbox):
    with PythonExecutor(sandbox=sandbox) as executor:
        yield executor


def test_execute_returns_openenvs_six_fields(executor):
    result = executor.execute("x = 1 + 1\nprint('hi')")
    assert {
        "stdout",
        "stderr",
        "locals_snapshot",
        "execution_time",
        "success",
        "exception",
    } <= result.keys()
    assert (result["stdout"], result["success"], result["exception"]) == ("hi\n", True, None)
    assert result["locals_snapshot"] == {"x": "2"}


def test_the_namespace_persists(executor):
    executor.execute("x = 10")
    executor.execute("y = x * 2")
    assert executor.get_variable("y") == 20
    assert {"x", "y"} <= set(executor.list_variables())


def test_an_exception_has_type_and_message(executor):
    result = executor.execute("raise ValueError('test error')")
    assert not result["success"]
    assert "ValueError: test error" in result["exception"]
    assert "ValueError: test error" in result["stderr"]


def test_a_context_and_variables_are_set(executor):
    executor.set_context("Hello")
    executor.set_variable("rows", [1, {"a": None}])
    assert executor.get_variable("context") == "Hello"
    assert executor.get_variable("rows") == [1, {"a": None}]
    assert executor.get_variable("missing") is None


def test_names_of_the_session_itself_cannot_be_set(executor: PythonExecutor) -> None:
    for name in ("__builtins__", "__name__", "_out", "call_host"):
        with pytest.raises(ValueError, match=r"own|taken"):
            executor.set_variable(name, {})
        with pytest.raises(ValueError, match=r"own|taken"):
            executor.set_context("text", name)
    assert executor.execute("print(len([1]))")["stdout"] == "1\n"


def test_a_variable_that_json_cannot_carry_is_a_type_error(executor):
    executor.execute("x = object()")
    with pytest.raises(TypeError):
        executor.get_variable("x")


def test_functions_of_the_host_are_injected_at_any_time(executor):
    executor.execute("before = 1")
    executor.inject_function("double", lambda value: value * 2)
    assert executor.execute("result = double(5)")["success"]
    assert executor.get_variable("result") == 10
    assert executor.get_variable("before") == 1
    executor.inject_function("double", lambda value, times=3: value * times)
    assert executor.execute("double(5, times=4)")["value"] == "20"


def test_an_injected_function_outlives_a_crash(executor):
    executor.inject_function("double", lambda value: value * 2)
    assert not executor.execute("import os; os._exit(1)")["success"]
    assert executor.execute("double(1)")["value"] == "2"


def test_an_invalid_function_name_is_refused(executor):
    with pytest.raises(ValueError, match="inject_function"):
        executor.inject_function("not a name", print)
    with pytest.raises(TypeError, match="inject_function: f must be callable, not int"):
        executor.inject_function("f", 5)
    assert executor.list_variables() == []


def test_reset_clears_variables_and_functions(executor):
    executor.execute("x = 10")
    executor.inject_function("double", lambda value: value * 2)
    executor.reset()
    assert executor.get_variable("x") is None
    assert not executor.execute("double(1)")["success"]


def test_a_long_output_is_cut(sandbox):
    with PythonExecutor(max_output_length=100, sandbox=sandbox) as executor:
        result = executor.execute("print('x' * 500)")
        assert result["truncated"]
        assert len(result["stdout"]) < 200
        assert "total 501" in result["stdout"]


def test_a_shared_sandbox_that_was_ended_is_replaced(monkeypatch):
    home = sandboxes.SandboxRegistry()
    set_process_sandbox(monkeypatch, lambda: home)
    try:
        with PythonExecutor() as executor:
            executor.execute("x = 1")
            zygote = zygote_pid(home.get(sandboxes.SandboxSettings()))
            os.kill(zygote, signal.SIGKILL)
            eventually(lambda: psutil.Process(zygote).status() == psutil.STATUS_ZOMBIE)
            executor.reset()
            assert executor.execute("2 * 3")["value"] == "6"
    finally:
        home.close()


@pytest.mark.parametrize(
    ("allowed", "code", "refused"),
    [
        (["json"], "import json, math, re", None),
        (["json"], "import os", "os"),
        (["json"], "from subprocess import run", "subprocess"),
        (("os.path",), "import os.path\nfrom os import path", None),
        (["xml.*"], "import xml.dom.minidom", None),
        (["*"], "import os, socket", None),
        ([], "import json", "json"),
        ([], "import time, random", None),
        (None, "import os", None),
    ],
)
def test_a_list_of_imports_is_a_lint_policy(allowed, code, refused):
    with PythonExecutor(8192, allowed) as executor:
        result = executor.execute(code)
    assert executor.allowed_imports == allowed
    if refused is None:
        assert result["success"], result["exception"]
    else:
        assert "PolicyError: line 1, column" in result["exception"]
        assert f"'{refused}'" in result["exception"]


@pytest.mark.parametrize(
    ("allowed", "error"), [("json", TypeError), ([3], TypeError), (["a b"], ValueError)]
)
def test_an_invalid_list_of_imports_is_refused_by_name(allowed, error):
    with pytest.raises(error, match="allowed_imports"):
        PythonExecutor(allowed_imports=allowed)


def test_attributes_that_are_assigned_hold():
    with PythonExecutor() as executor:
        executor.execute("x = 1")
        executor.max_output_length = 10
        assert len(executor.execute("print('y' * 500)")["stdout"]) < 200
        executor.allowed_imports = []
        assert executor.execute("import os")["success"]  # this session was begun without
        executor.reset()
        assert not executor.execute("import os")["success"]
        with pytest.raises(ValueError, match="max_output_length"):
            executor.max_output_length = 0


def test_a_list_of_imports_excludes_a_sandbox(sandbox):
    with pytest.raises(TypeError, match="policy"):
        PythonExecutor(allowed_imports=["json"], sandbox=sandbox)

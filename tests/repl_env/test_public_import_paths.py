"""Public names are where OpenEnv's are, are one object each, and cost nothing to import."""

import json
import subprocess
import sys

import pytest

import repl_env
import repl_sandbox

OPENENV = [
    "REPLAction",
    "REPLObservation",
    "REPLState",
    "CodeBlockResult",
    "REPLEnv",
    "LocalREPLEnv",
    "LocalRLMRunner",
    "RLMRunResult",
    "RLM_SYSTEM_PROMPT",
    "RLM_SYSTEM_PROMPT_QWEN",
    "QueryMetadata",
    "build_rlm_system_prompt",
    "build_user_prompt",
    "extract_code_blocks",
    "format_observations",
    "REPLRubric",
    "ExactMatchRubric",
    "FuzzyMatchRubric",
    "CustomMetricRubric",
    "CodeExecutionRubric",
]


@pytest.mark.parametrize("name", [*OPENENV, *repl_env.__all__])
def test_every_name_of_the_package_can_be_imported(name):
    assert name in repl_env.__all__
    assert name in dir(repl_env)
    assert getattr(repl_env, name) is not None


def test_openenvs_modules_export_the_same_objects():
    from repl_env import prompts, runner, server
    from repl_env.parsing import blocks
    from repl_env.server import python_executor, repl_environment

    assert repl_environment.REPLEnvironment is repl_env.REPLEnvironment
    assert python_executor.PythonExecutor is python_executor.PythonExecutor
    assert server.PythonExecutor is python_executor.PythonExecutor
    assert server.REPLEnvironment is repl_env.REPLEnvironment
    assert prompts.extract_code_blocks is blocks.extract_code_blocks
    assert (runner.LocalRLMRunner, runner.RLMRunResult) == (
        repl_env.LocalRLMRunner,
        repl_env.RLMRunResult,
    )


@pytest.mark.parametrize("name", ["AsyncSandbox", "IsolationError", "Limits", "Policy", "Sandbox"])
def test_the_classes_of_constructor_arguments_can_be_imported_from_the_package(name):
    assert getattr(repl_env, name) is getattr(repl_sandbox, name)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: repl_env.LocalREPLEnv(limits={"memory": "1GiB"}), "from repl_env import Limits"),
        (lambda: repl_env.REPLVectorEnv(2, policy="lint"), "from repl_env import Policy"),
        (lambda: repl_env.REPLEnvironment(sandbox="auto"), "from repl_env import Sandbox"),
        (lambda: repl_env.LocalREPLEnv(budget=5), "from repl_env.rlm import Budget"),
        (lambda: repl_env.LocalREPLEnv().reset(llm="gpt"), "from repl_env import LLM"),
        (lambda: repl_env.LocalREPLEnv(memory="1GiB"), r"Limits\(memory.*from repl_env import Lim"),
        (lambda: repl_env.AsyncLocalREPLEnv(timeout_s=5), r"limits=Limits\(timeout=...\)"),
        (
            lambda: repl_env.REPLVectorEnv(1, imports=[]),
            r"policy=Policy\(.*from repl_env import Pol",
        ),
        (lambda: repl_sandbox.Sandbox(limits=5), "from repl_sandbox import Limits"),
        (lambda: repl_sandbox.Sandbox(policy="lint"), "from repl_sandbox import Policy"),
        (lambda: repl_sandbox.AsyncSandbox.of(5), "from repl_sandbox import Sandbox"),
    ],
)
def test_an_error_that_asks_for_a_class_says_where_it_is_from(make, named):
    with pytest.raises(TypeError, match=named):
        make()


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = repl_env.nothing


def loaded_by(code):
    report = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_neither_engine_nor_pydantic():
    loaded = loaded_by("import repl_env")
    assert "repl_sandbox" not in loaded
    assert "pydantic" not in loaded


def test_the_package_and_the_client_work_where_there_is_no_engine():
    loaded = loaded_by(
        "import sys\n"
        "sys.modules['repl_sandbox'] = None\n"
        "import repl_env\n"
        "assert 'Limits' in dir(repl_env)\n"
        "repl_env.REPLEnv('http://localhost:8000').sync()\n"
        "try: repl_env.Limits\n"
        "except ImportError as error: assert 'repl_sandbox' in str(error)\n"
        "else: raise AssertionError"
    )
    assert "repl_env.client.client" in loaded


@pytest.mark.parametrize(
    "module", ["models", "errors", "interfaces", "rubrics", "parsing", "prompts", "llm"]
)
def test_the_types_load_without_the_engine(module):
    assert "repl_sandbox" not in loaded_by(f"import repl_env.{module}")


def test_loading_the_environment_needs_no_library_of_schemas():
    assert "jsonschema" not in loaded_by("import repl_env.local")
